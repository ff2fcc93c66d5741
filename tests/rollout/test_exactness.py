"""Tokens of an episode are appended and never made again, whatever was sampled."""

from __future__ import annotations

import random
import shutil
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.controller.episodes.maker import EpisodeMaker
from services.controller.episodes.room import EnvironmentRoom
from services.controller.groups import MadeTurn
from services.rollout.chat import ChatTokenizer
from services.rollout.engine import Chunk, Ended
from services.rollout.server import RolloutServicer, rollout_service
from services.rollout.turns.tokenizer import TurnTokenizer
from services.trainer.step.batch import StepBatch, pack
from tests.controller.fakes import FakeEnvironment
from tests.images.test_processor import folder_of, png
from tests.rollout.chats import CHATML, write_chat
from tests.tiny_model import SHAPE
from tests.tiny_vision import IMAGE, tiny_vision_tokenizer
from trimaran.clients import GroupAssembly, RolloutClient
from trimaran.config import parse_config
from trimaran.types import (
    Caller,
    Message,
    PolicyVersion,
    Prompt,
    Reply,
    Sampling,
    Score,
    ScoredGroup,
    VersionId,
    sampled_spans,
)
from trimaran.v1 import rollout_pb2 as pb
from trimaran.wire import messages as wire
from trimaran.wire import rpc

VERSION = VersionId(0, 0)


class DiceEngine:
    """Says any ids, also those of other turns' openings, of unknown words and of none; remembers its prompts."""

    num_running = 0

    def __init__(self, chat):
        self.chat, self.turns = chat, TurnTokenizer(chat)
        self.dice = random.Random(0)
        self.prompts, self.made = [], []
        self.stop_token_ids = chat.stop_token_ids
        self.tokenize, self.detokenize = chat.tokenize, chat.detokenize

    async def generate(self, request):
        self.prompts.append(request.prompt_token_ids)
        count = self.dice.randint(1, 6)
        tokens = tuple(self.dice.choices(range(SHAPE["vocab_size"] + 4), k=count))
        self.made.append((request.prompt_token_ids, tokens, request.images))
        yield Chunk(0, 0, VERSION, tokens, (-0.5,) * count)
        yield Ended(0, "length")


@pytest.fixture
def servicer(model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    return servicer_of(make_config(folder), write_chat(folder, CHATML))


def make_config(folder, **sections):
    return parse_config(
        {
            "model": {"path": str(folder)},
            "data": {"train": "unused.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
            "rollout": {"max_tokens": 1024},
            **sections,
        }
    )


def servicer_of(config, chat):
    engine: Any = DiceEngine(chat)
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


class Turns:
    """Asks one replica, as a `GroupMaker` does."""

    def __init__(self, client):
        self.client = client

    async def turn(self, number, prompt, sampling, prefix, prefer, on_retry):
        assembly = GroupAssembly(1)
        group = await self.client.generate(
            number, 1, prompt, sampling, VERSION, assembly, 60.0, prefix
        )
        assert assembly.message
        return MadeTurn(group, group.completions_G[0], assembly.message, "rollout-0")


@asynccontextmanager
async def vision_maker(folder):
    """make(number, prompt) -> a group of two episodes; and of each turn what it was asked with, made, and saw."""
    folder_of(folder)
    tiny_vision_tokenizer().save_pretrained(folder)
    config = make_config(folder, environment={"factory": "guess.py:Guess", "max_turns": 4})
    servicer = servicer_of(config, ChatTokenizer(folder, takes_images=True))
    environment: Any = FakeEnvironment([])
    environment.reply = lambda name, turn, message: Reply(
        (Message("tool", "3"), Message("user", "what <image>?")), done=turn == 3
    )
    server = rpc.Server("127.0.0.1:0", [rollout_service(servicer)])
    await server.start()
    async with RolloutClient(server.address, Caller("run", 1)) as client:
        turns: Any = Turns(client)
        room = EnvironmentRoom([environment], 64)
        maker = EpisodeMaker(turns, room, config, lambda *_: None)

        async def make(number, prompt):
            engine: Any = servicer._engine
            engine.made.clear()
            return await maker.generate(number, prompt, Sampling(1.0, 8, 2)), [*engine.made]

        yield make
    await server.stop()


def turns_in(group):
    """What stands before each sampled part of its episodes, and the part."""
    prompt = tuple(group.prompt_token_ids)
    found = []
    for completion in group.completions_G:
        ids = tuple(completion.token_ids_T)
        for start, end in sampled_spans(completion.segments):
            found.append(((*prompt, *ids[:start]), ids[start:end]))
    return found


async def test_trained_are_the_sampled_tokens_behind_the_images_of_the_row(tmp_path):
    """An image token that was sampled is one of them, and no image's."""
    num_sampled = 0
    async with vision_maker(tmp_path / "vision") as make:
        for number in range(15):
            dice = random.Random(number)
            heights = [dice.randint(1, 3) for _ in range(dice.randint(1, 2))]
            files = tuple(png(28 * height, 28, number)[0] for height in heights)
            text = "<image>left " + "<image> right" * (len(files) - 1)
            prompt = Prompt("row", (Message("user", text, files),), "task", "")
            group, made = await make(number, prompt)
            turns = turns_in(group)
            assert sorted(turns) == sorted((asked, sampled) for asked, sampled, _ in made)
            step = StepBatch.of([ScoredGroup(group, (Score(1.0),) * 2)], mask_truncated=False)
            packed = pack(step, [(0, (0, 1))], torch.device("cpu"))
            assert packed.targets_M.tolist() == [one for _, sampled in turns for one in sampled]
            [seen] = packed.images
            places = [place for place, one in enumerate(seen.token_ids) if one == IMAGE]
            for _, sampled, images in made:
                found = [at for start, count in images.ranges for at in range(start, start + count)]
                assert found == places and [count for _, count in images.ranges] == heights
                assert images.processed.digest == seen.digest == group.image_digest
                num_sampled += sampled.count(IMAGE)
    assert num_sampled
