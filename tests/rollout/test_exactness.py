"""Tokens of an episode are appended and never made again, whatever was sampled."""

from __future__ import annotations

import random
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from services.rollout.engine import Chunk, Ended
from services.rollout.server import RolloutServicer
from services.rollout.turns.tokenizer import TurnTokenizer
from tests.rollout.chats import CHATML, write_chat
from tests.tiny_model import SHAPE
from trimaran.clients import GroupAssembly
from trimaran.config import parse_config
from trimaran.types import Message, PolicyVersion, Prompt, Sampling, VersionId
from trimaran.v1 import rollout_pb2 as pb
from trimaran.wire import messages as wire

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


@pytest.fixture
def servicer(model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    engine: Any = DiceEngine(write_chat(folder, CHATML))
    config = parse_config(
        {
            "model": {"path": str(folder)},
            "data": {"train": "unused.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
            "rollout": {"max_tokens": 1024},
        }
    )
    live = PolicyVersion("run", VERSION, "root")
    weights: Any = SimpleNamespace(is_asleep=False, live=live, maker="rollout-0")
    return RolloutServicer("rollout-0", config, engine, weights)


async def turn(servicer, messages, prefix):
    request = pb.GenerateRequest(
        prompt=wire.encode_prompt(Prompt("row", messages, "task", "")),
        sampling=wire.encode_sampling(Sampling(1.0, 8, 1)),
        turn=pb.TurnRequest(prefix_token_ids=wire.encode_token_ids(prefix)),
    )
    assembly = GroupAssembly(1)
    async for response in servicer.Generate(request, None):
        assembly.take(response)
    (completion,) = assembly.completions()
    return [*assembly.prompt_token_ids], [*completion.token_ids_T]


@pytest.mark.parametrize("num_episodes", [500, pytest.param(10_000, marks=pytest.mark.e2e)])
async def test_the_next_prompt_is_all_tokens_before_it_and_the_given_ones(servicer, num_episodes):
    engine, changed = servicer._engine, 0
    replies = [(Message("user", "higher"),), (Message("tool", "3"), Message("tool", "~4"))]
    for number in range(num_episodes):
        dice = random.Random(number)
        messages, tokens = (Message("user", "Guess."),), []
        for _ in range(dice.randint(1, 3)):
            given, sampled = await turn(servicer, messages, tokens)
            assert engine.prompts.pop() == (*tokens, *given)
            said = engine.chat.show(sampled)
            changed += [*engine.chat.tokenize_text(said)] != sampled
            tokens += [*given, *sampled]
            messages = dice.choice(replies)
    # Many would have come out otherwise, decoded and encoded again.
    assert changed > num_episodes / 10
