"""The recipe of an environment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from services.environment.local.host import LocalHost, load_spec
from tests.extending.recipes import Recipe
from trimaran.config import parse_config
from trimaran.errors import InputError
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Prompt, Reply

TREE = {"model": {"path": "m"}, "data": {"train": "t"}}
PROMPT = Prompt("p:1", (Message("user", "begin"),), "default", "")


def test_a_run_plays_with_the_packages_environment(follow: Callable[[str], Recipe]) -> None:
    config = parse_config({**TREE, **follow("An environment").run})
    section = config.environment
    assert section
    number = random.Random(7).randint(1, 8)

    async def play() -> tuple[str, list[Reply]]:
        async with LocalHost(section, load_spec(config, section, Allowed()), Allowed()) as host:
            game = host.create("1.1.0")
            opening = await game.open(PROMPT, seed=7)
            said = ["eight", str(number + 1), str(number)]
            replies = [await game.step(Message("assistant", text), "stop") for text in said]
            await game.close()
            return opening.messages[0].text, replies

    opening, (words, wrong, right) = asyncio.run(play())
    assert opening == "Guess a number from 1 to 8."
    assert words.messages == (Message("user", "a number, please"),)
    assert (wrong.messages, wrong.reward) == ((Message("user", "lower"),), 0.0)
    assert (right.messages, right.reward, right.done) == ((), 1.0, True)


def test_without_the_package_the_name_is_unknown() -> None:
    config = parse_config({**TREE, "environment": {"installed": "guess"}})
    assert config.environment
    with pytest.raises(InputError, match=r"environment\.installed: 'guess' is unknown"):
        load_spec(config, config.environment, Allowed())
