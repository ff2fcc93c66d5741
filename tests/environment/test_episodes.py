"""Bookkeeping of episodes, on an environment that does as its test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
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


@asynccontextmanager
async def episodes_of(
    seconds: Mapping[str, float] = {}, **section: Any
) -> AsyncIterator[tuple[OpenEpisodes, list[str]]]:
    """And the log of what they do."""
    worlds = Worlds()
    given = EnvironmentSection.model_validate({"python": True, **section})
    async with OpenEpisodes(worlds, given, **seconds) as episodes:
        yield episodes, worlds.log


def say(text: str) -> Message:
    return Message("assistant", text)


async def test_the_last_turn_again_has_the_same_answer() -> None:
    async with episodes_of() as (episodes, log):
        opening = await episodes.open("a", PROMPT, 7, epoch=1)
        assert [message.text for message in opening.messages] == ["Guess.", "7"]
        first = await episodes.step("a", 1, say("4"), "stop", 1)
        assert await episodes.step("a", 1, say("4"), "stop", 1) is first
        with pytest.raises(OutOfOrderError, match="turn 3 after turn 1"):
            await episodes.step("a", 3, say("5"), "stop", 1)
        await episodes.step("a", 2, say("5"), "stop", 1)
        await episodes.close("a")
        await episodes.close("a")
    assert log == ["open a", "step 4", "step 5", "close a"]


async def test_who_was_cut_off_in_the_middle_of_a_step_gets_its_answer_when_it_asks_again() -> None:
    async with episodes_of(timeout=0.2) as (episodes, log):
        await episodes.open("a", PROMPT, 7, 1)
        asking = asyncio.create_task(episodes.step("a", 1, say("hang"), "stop", 1))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(DeadlineError, match=r"environment\.timeout"):
            await episodes.step("a", 1, say("hang"), "stop", 1)
        with pytest.raises(NotFoundError):
            await episodes.step("a", 1, say("hang"), "stop", 1)
    assert log == ["open a", "step hang", "close a"]


async def test_a_name_that_is_opened_again_ends_the_one_before() -> None:
    async with episodes_of(max_episodes=1) as (episodes, log):
        await episodes.open("a", PROMPT, 7, 1)
        await episodes.open("a", PROMPT, 7, 1)
        assert log == ["open a", "close a", "open a"]
        assert episodes.num_open == 1


async def test_open_waits_for_room_and_says_what_there_is_too_little_of() -> None:
    async with episodes_of({"room_seconds": 0.1}, max_episodes=1) as (episodes, log):
        await episodes.open("a", PROMPT, 7, 1)
        with pytest.raises(UnavailableError, match=r"environment\.max_episodes"):
            await episodes.open("b", PROMPT, 7, 1)
        waiting = asyncio.create_task(episodes.open("c", PROMPT, 7, 1))
        await asyncio.sleep(0)
        await episodes.close("a")
        await waiting
        assert log == ["open a", "close a", "open c"]


async def test_episodes_end_with_their_controller_and_in_silence() -> None:
    async with episodes_of({"idle_seconds": 0.1}) as (episodes, log):
        await episodes.open("a", PROMPT, 7, 1)
        await episodes.open("b", PROMPT, 7, epoch=2)
        with pytest.raises(NotFoundError):
            await episodes.step("a", 1, say("4"), "stop", 2)
        await asyncio.sleep(0.3)
        with pytest.raises(NotFoundError):
            await episodes.step("b", 1, say("4"), "stop", 2)
        assert log == ["open a", "close a", "open b", "close b"]
