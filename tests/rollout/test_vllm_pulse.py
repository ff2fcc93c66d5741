"""A frozen engine ends its replica; a busy one, and one that loads weights, does not. Nothing is left in /dev/shm."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest
import torch

from services.rollout.vllm.pulse import Pulse
from services.rollout.vllm.workers import VllmWorkers
from tests.rollout import replicas
from tests.rollout.replicas import MAX_TOKENS, TIMEOUT, generate, sampling
from trimaran.clients import GroupAssembly
from trimaran.errors import InternalError, TrimaranError
from trimaran.host.shared_memory import FOLDER, remove_left, semaphore_prefix
from trimaran.run.placement import PLACED

FROZEN_SECONDS = 4.0
SHARED = ("psm_", "-cpushm") if torch.cpu._is_avx512_supported() else ("psm_",)
"""In the names of what two ranks of vLLM share: on CPUs without AVX-512 no sums of theirs."""


class Llm:
    """Answers calls while it may."""

    def __init__(self):
        self.calls: list[str] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def collective_rpc(self, method, args):
        self.calls.append(args[0])
        await self.goes_on.wait()
        return [(True, None)]


async def checks(pulse: Pulse, count: int) -> None:
    """As if so many seconds went by."""
    for _ in range(count):
        pulse.check()
        for _ in range(5):  # what is ready goes on
            await asyncio.sleep(0)


async def test_an_engine_that_answers_is_asked_every_few_seconds():
    llm = Llm()
    await checks(Pulse(VllmWorkers(llm, None).answer, 60.0), 70)
    assert 8 <= len(llm.calls) <= 15 and set(llm.calls) == {"answer"}


async def test_an_engine_that_takes_no_call_is_frozen_after_the_timeout_and_not_before():
    llm = Llm()
    pulse = Pulse(VllmWorkers(llm, None).answer, 60.0)
    llm.goes_on.clear()
    await checks(pulse, 55)
    llm.goes_on.set()  # a step of 55 s: busy
    await checks(pulse, 3)
    llm.goes_on.clear()
    with pytest.raises(InternalError, match="frozen: .* no call for 61 s .frozen_timeout is 60"):
        await checks(pulse, 75)
    pulse.close()


async def test_a_load_of_weights_is_no_silence():
    llm = Llm()
    workers = VllmWorkers(llm, None)
    pulse = Pulse(workers.answer, 60.0)
    async with workers.turn:
        await checks(pulse, 500)
    await checks(pulse, 3)
    assert llm.calls == ["answer"]


SERVE = """
import sys
from commands.cli.main import main
sys.exit(main(["serve", "rollout", "--config", sys.argv[1], "--run-folder", sys.argv[2], "--index", "0"]))
"""


@pytest.fixture
def start(model, tmp_path):
    running = []

    def start(tensor_parallel):
        how = {"tensor_parallel": tensor_parallel, "frozen_timeout": FROZEN_SECONDS}
        running.append(replicas.start_replica("vllm", model, tmp_path, SERVE, **how))
        return running[0], psutil.Process(running[0].process.pid).children(recursive=True)

    yield start
    for replica in running:
        replicas.stop(replica)


@pytest.mark.e2e
async def test_a_busy_core_lives_and_a_stopped_one_ends_its_replica(start, model):
    from safetensors.torch import load_file

    replica, (core,) = await asyncio.to_thread(start, 1)  # which runs a loop of its own
    assert core.environ()[PLACED] == "rollout-0"  # so a launcher's mark is seen there, too

    async with replica.client() as client:
        await replica.publish(client, load_file(model / "model.safetensors"))
        began = time.monotonic()
        while time.monotonic() - began < 3 * FROZEN_SECONDS:  # as much as it can take
            groups = (generate(client, sampling(8, MAX_TOKENS), number=n) for n in range(2))
            await asyncio.gather(*groups)
        core.suspend()
        with pytest.raises(TrimaranError):  # its caller goes on elsewhere
            await generate(client, sampling(1, 8), into=GroupAssembly(1))
    assert_ended(replica, [core])


@pytest.mark.e2e
def test_a_stopped_worker_of_two_ends_its_replica_though_nothing_asks_for_tokens(start):
    """The core answers by itself all the while."""
    replica, children = start(tensor_parallel=2)
    workers = [child for child in children if child.children() == [] and "Worker" in title(child)]
    assert len(workers) == 2, [title(child) for child in children]
    time.sleep(2 * FROZEN_SECONDS)
    assert replica.process.poll() is None
    noted = replica.note.read_text()
    assert all(kind in noted for kind in SHARED)
    workers[1].suspend()
    assert_ended(replica, children)
    remove_left(replica.note)  # as a launcher does: what was just killed may have had sockets
    assert not replica.note.exists(), "what it shared in /dev/shm is left"


@pytest.mark.e2e
def test_a_killed_replica_of_two_ranks_leaves_names_that_its_note_lists(start):
    """And the sockets at which vLLM's ranks meet."""
    replica, children = start(tensor_parallel=2)
    note, lines = replica.note, replica.note.read_text().replace("[[]", "[").splitlines()
    noted = {path.name for path in FOLDER.iterdir() if path.name in lines}
    assert all(any(kind in name for name in noted) for kind in SHARED), noted
    [sockets] = FOLDER.glob(f"{semaphore_prefix(note.parent.parent)}-*")
    assert any(path.is_socket() for path in sockets.iterdir())
    assert remove_left(note, 0.0) == []
    tree = [psutil.Process(replica.process.pid), *children]
    for process in tree:  # none of them sees the end of another
        process.suspend()
    for process in tree:
        process.kill()
    replica.process.wait(TIMEOUT)
    left = {name for name in noted if (FOLDER / name).exists()}
    assert any("psm_" in name for name in left), "vLLM removes them by itself"
    assert any(sockets.iterdir())
    assert set(remove_left(note)) == {*left, sockets.name}
    assert not any((FOLDER / name).exists() for name in (*noted, sockets.name))


def title(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def assert_ended(replica, children: list[psutil.Process]) -> None:
    """With all that it had started, and the exit code after which a launcher starts it again."""
    assert replica.process.wait(TIMEOUT) == 75
    assert "error: the vllm engine is frozen" in Path(replica.log).read_text()
    _, alive = psutil.wait_procs(children, TIMEOUT)
    assert not alive
