"""What holds wherever processes are started: on this machine, by an engine of others, and by Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from commands.launch.children import Child, Children
from tests.launch.stages import ExternalStage, LocalStage, RayStage, Stage, kill

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=[LocalStage, ExternalStage, RayStage])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    """One of each kind."""
    return request.param(tmp_path)


@asynccontextmanager
async def opened(stage: Stage) -> AsyncGenerator[Children]:
    children = await stage.open()
    await children.open()
    try:
        yield children
    finally:
        await children.close()
        await children.close()  # idempotent
        await stage.close()


async def begun(stage: Stage, children: Children, name: str) -> Child:
    """Once it does what it shall."""
    while not ((stage.folder / name).exists() and children.alive[name].incarnation):
        await asyncio.sleep(0.02)
    return children.alive[name]


async def test_who_is_asked_to_end_is_gone_and_leaves_no_exit(stage: Stage) -> None:
    async with opened(stage) as children:
        await children.start(stage.make("reward", "run"))
        assert set(children.alive) == {"reward"}
        child = await begun(stage, children, "reward")
        assert child.service.name == "reward" and not child.is_stopped()
        await children.end(["reward", "nobody"], 20.0)
        assert not children.alive and children.exits.empty()


async def test_who_ends_by_itself_says_how(stage: Stage) -> None:
    async with opened(stage) as children:
        await children.start(stage.make("controller", "finish3"))
        await begun(stage, children, "controller")
        (stage.folder / "controller-may-finish").touch()
        ended = await children.exits.get()
        assert (ended.service.name, ended.code, ended.how) == ("controller", 3, "exit code 3")
        assert "controller" not in children.alive


async def test_who_is_killed_has_died_and_lives_again_as_another(stage: Stage) -> None:
    async with opened(stage) as children:
        service = stage.make("trainer-0", "run")
        await children.start(service)
        first = await begun(stage, children, "trainer-0")
        kill(stage, "trainer-0")
        (stage.folder / "trainer-0").unlink()
        ended = await children.exits.get()
        assert (ended.service, ended.code) == (service, -9)
        assert ended.lived_seconds > 0
        await children.start(service)
        again = await begun(stage, children, "trainer-0")
        assert again.incarnation != first.incarnation and again.began > first.began


async def test_what_the_launcher_ends_for_silence_has_died(stage: Stage) -> None:
    async with opened(stage) as children:
        await children.start(stage.make("reward", "run"))
        await begun(stage, children, "reward")
        children.kill("reward")
        children.kill("nobody")
        ended = await children.exits.get()
        assert ended.service.name == "reward"


async def test_one_is_started_again_after_it_was_ended(stage: Stage) -> None:
    async with opened(stage) as children:
        service = stage.make("trainer-0", "run")
        await children.start(service)
        first = await begun(stage, children, "trainer-0")
        # Before the end: an engine may start the next one at once, which makes the file again.
        (stage.folder / "trainer-0").unlink()
        await children.end(["trainer-0"], 20.0)
        await children.start(service)
        again = await begun(stage, children, "trainer-0")
        assert again.incarnation != first.incarnation
        assert children.exits.empty()
