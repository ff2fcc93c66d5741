"""Bookkeeping of episodes, on an environment that does as its test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.environment.episodes import OpenEpisodes
from tests.environment.worlds import Worlds
from trimaran.config import EnvironmentSection
from trimaran.errors import (
    DeadlineError,
    NotFoundError,
    OutOfOrderError,
    UnavailableError,
)
from trimaran.types import Message, Prompt

PROMPT = Prompt("p:1", (Message("user", "Guess."),), "guess", "7")


def with_episodes(
    use: Callable[[OpenEpisodes, list[str]], Awaitable[None]],
    section: dict[str, Any] | None = None,
    **seconds: float,
) -> list[str]:
    worlds = Worlds()

    async def run() -> None:
        given = EnvironmentSection.model_validate({"python": True, **(section or {})})
        async with OpenEpisodes(worlds, given, **seconds) as episodes:
            await use(episodes, worlds.log)

    asyncio.run(run())
    return worlds.log


def say(text: str) -> Message:
    return Message("assistant", text)


def test_the_last_turn_again_has_the_same_answer() -> None:
    async def use(episodes: OpenEpisodes, log: list[str]) -> None:
        opening = await episodes.open("a", PROMPT, 7, epoch=1)
        assert [message.text for message in opening.messages] == ["Guess.", "7"]
        first = await episodes.step("a", 1, say("4"), "stop", 1)
        assert await episodes.step("a", 1, say("4"), "stop", 1) is first
        with pytest.raises(OutOfOrderError, match="turn 3 after turn 1"):
            await episodes.step("a", 3, say("5"), "stop", 1)
        await episodes.step("a", 2, say("5"), "stop", 1)
        await episodes.close("a")
        await episodes.close("a")

    assert with_episodes(use) == ["open a", "step 4", "step 5", "close a"]


def test_who_was_cut_off_in_the_middle_of_a_step_gets_its_answer_when_it_asks_again() -> None:
    async def use(episodes: OpenEpisodes, log: list[str]) -> None:
        await episodes.open("a", PROMPT, 7, 1)
        asking = asyncio.create_task(episodes.step("a", 1, say("hang"), "stop", 1))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(DeadlineError, match=r"environment\.timeout"):
            await episodes.step("a", 1, say("hang"), "stop", 1)
        with pytest.raises(NotFoundError):
            await episodes.step("a", 1, say("hang"), "stop", 1)

    assert with_episodes(use, {"timeout": 0.2}) == ["open a", "step hang", "close a"]


def test_a_name_that_is_opened_again_ends_the_one_before() -> None:
    async def use(episodes: OpenEpisodes, log: list[str]) -> None:
        await episodes.open("a", PROMPT, 7, 1)
        await episodes.open("a", PROMPT, 7, 1)
        assert log == ["open a", "close a", "open a"]
        assert episodes.num_open == 1

    with_episodes(use, {"max_episodes": 1})


def test_open_waits_for_room_and_says_what_there_is_too_little_of() -> None:
    async def use(episodes: OpenEpisodes, log: list[str]) -> None:
        await episodes.open("a", PROMPT, 7, 1)
        with pytest.raises(UnavailableError, match=r"environment\.max_episodes"):
            await episodes.open("b", PROMPT, 7, 1)
        waiting = asyncio.create_task(episodes.open("c", PROMPT, 7, 1))
        await asyncio.sleep(0)
        await episodes.close("a")
        await waiting
        assert log == ["open a", "close a", "open c"]

    with_episodes(use, {"max_episodes": 1}, room_seconds=0.1)


def test_episodes_end_with_their_controller_and_in_silence() -> None:
    async def use(episodes: OpenEpisodes, log: list[str]) -> None:
        await episodes.open("a", PROMPT, 7, 1)
        await episodes.open("b", PROMPT, 7, epoch=2)
        with pytest.raises(NotFoundError):
            await episodes.step("a", 1, say("4"), "stop", 2)
        await asyncio.sleep(0.3)
        with pytest.raises(NotFoundError):
            await episodes.step("b", 1, say("4"), "stop", 2)
        assert log == ["open a", "close a", "open b", "close b"]

    with_episodes(use, idle_seconds=0.1)
