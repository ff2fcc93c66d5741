"""The recipe of an environment."""

from __future__ import annotations

import random
from collections.abc import Callable

from services.environment.local.host import LocalHost, load_spec
from tests.configs import configure
from tests.extending.recipes import Recipe
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Prompt

PROMPT = Prompt("p:1", (Message("user", "begin"),), "default", "")


async def test_a_run_plays_with_the_packages_environment(follow: Callable[[str], Recipe]) -> None:
    config = configure(**follow("An environment").run)
    section = config.environment
    assert section
    number = random.Random(7).randint(1, 8)

    async with LocalHost(section, load_spec(config, section, Allowed()), Allowed()) as host:
        game = host.create("1.1.0")
        opening = await game.open(PROMPT, seed=7)
        said = ["eight", str(number + 1), str(number)]
        words, wrong, right = [await game.step(Message("assistant", text), "stop") for text in said]
        await game.close()
    assert opening.messages[0].text == "Guess a number from 1 to 8."
    assert words.messages == (Message("user", "a number, please"),)
    assert (wrong.messages, wrong.reward) == ((Message("user", "lower"),), 0.0)
    assert (right.messages, right.reward, right.done) == ((), 1.0, True)
