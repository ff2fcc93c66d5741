"""Tokens of an episode are appended and never made again, whatever was sampled."""

from __future__ import annotations

import random
import shutil
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from services.rollout.engine import Chunk, Ended
from services.rollout.server import RolloutServicer, rollout_service
from services.rollout.turns.tokenizer import TurnTokenizer
from tests.configs import configure
from tests.rollout.chats import CHATML, write_chat
from tests.tiny_model import SHAPE
from trimaran.clients import GroupAssembly, RolloutClient
from trimaran.types import Caller, Message, PolicyVersion, Prefix, Prompt, Sampling, VersionId
from trimaran.wire import rpc

VERSION = VersionId(0, 0)


class DiceEngine:
    """Says any ids, also those of other turns' openings, of unknown words and of none; remembers its prompts."""

    num_running = 0

    def __init__(self, chat):
        self.chat, self.turns = chat, TurnTokenizer(chat)
        self.dice = random.Random(0)
        self.prompts = []
        self.stop_token_ids = chat.stop_token_ids
        self.tokenize, self.detokenize = chat.tokenize, chat.detokenize

    async def generate(self, request):
        self.prompts.append(request.prompt_token_ids)
        count = self.dice.randint(1, 6)
        tokens = tuple(self.dice.choices(range(SHAPE["vocab_size"] + 4), k=count))
        yield Chunk(0, 0, VERSION, tokens, (-0.5,) * count)
        yield Ended(0, "length")


@asynccontextmanager
async def replica_of(folder):
    """Its engine and a client of it."""
    engine: Any = DiceEngine(write_chat(folder, CHATML))
    config = configure(model={"path": str(folder)}, rollout={"max_tokens": 1024})
    live = PolicyVersion("run", VERSION, "root")
    weights: Any = SimpleNamespace(is_asleep=False, live=live, maker="rollout-0")
    servicer = RolloutServicer("rollout-0", config, engine, weights)
    server = rpc.Server("127.0.0.1:0", [rollout_service(servicer)])
    await server.start()
    async with RolloutClient(server.address, Caller("run", 1)) as client:
        yield engine, client
    await server.stop()


@pytest.mark.parametrize("num_episodes", [500, pytest.param(10_000, marks=pytest.mark.e2e)])
async def test_the_next_prompt_is_all_tokens_before_it_and_the_given_ones(
    model, tmp_path, num_episodes
):
    folder, changed = shutil.copytree(model, tmp_path / "model"), 0
    replies = [(Message("user", "higher"),), (Message("tool", "3"), Message("tool", "~4"))]
    async with replica_of(folder) as (engine, client):
        for number in range(num_episodes):
            dice = random.Random(number)
            messages, tokens = (Message("user", "Guess."),), []
            for _ in range(dice.randint(1, 3)):
                turn = Prompt("row", messages, "task", ""), Sampling(1.0, 8, 1), VERSION
                made, prefix = GroupAssembly(1), Prefix(tuple(tokens))
                group = await client.generate(number, 1, *turn, made, 60.0, prefix)
                given, sampled = group.prompt_token_ids, group.completions_G[0].token_ids_T
                assert engine.prompts.pop() == (*tokens, *given)
                changed += engine.chat.tokenize_text(engine.chat.show(sampled)) != tuple(sampled)
                tokens += [*given, *sampled]
                messages = dice.choice(replies)
    # Many would have come out otherwise, decoded and encoded again.
    assert changed > num_episodes / 10
