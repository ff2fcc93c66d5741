"""Turns of an episode by both engines, behind the real server in a process of its own."""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager

import pytest
import torch
import transformers

from tests.rollout import replicas
from tests.rollout.chats import CHATML, write_chat
from trimaran.clients import GroupAssembly
from trimaran.errors import InputError, PromptTooLongError
from trimaran.types import Message, Prefix, Prompt, Sampling

pytestmark = pytest.mark.e2e

ASKED = Prompt("train.jsonl:1", (Message("user", "Guess a number."),), "guess", "")
HIGHER = Prompt("train.jsonl:1", (Message("user", "higher"),), "guess", "")


@pytest.fixture(scope="module")
def chat_model(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "chat"
    shutil.copytree(model, folder)
    write_chat(folder, CHATML)
    return folder


@pytest.fixture(scope="module", params=["transformers", "vllm"])
def replica(request, chat_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"episodes-{request.param}")
    running = replicas.start_replica(request.param, chat_model, folder)
    yield running
    replicas.stop(running)


@pytest.fixture(scope="module")
def reference(chat_model):
    return transformers.AutoModelForCausalLM.from_pretrained(chat_model).eval()


@asynccontextmanager
async def connected(replica, reference):
    async with replica.client() as client:
        if not replica.num_published:
            await replica.publish(client, dict(reference.named_parameters()))
        yield client


async def turn(client, prompt, before=(), into=None, **sampling):
    assembly = into or GroupAssembly(1)
    drawn = Sampling(**{"temperature": 1.0, "max_tokens": 40, "num_samples": 1} | sampling)
    group = await client.generate(
        0, 1, prompt, drawn, replicas.ANY_VERSION, assembly, replicas.TIMEOUT, Prefix(before)
    )
    (completion,) = group.completions_G
    return tuple(group.prompt_token_ids), completion, assembly


async def test_a_turn_goes_on_from_all_tokens_before_it(replica, reference):
    async with connected(replica, reference) as client:
        asked, first, _ = await turn(client, ASKED)
        prefix = (*asked, *first.token_ids_T)
        reported, second, assembly = await turn(client, HIGHER, prefix)
    tokens = (*asked, *first.token_ids_T, *reported, *second.token_ids_T)
    with torch.no_grad():
        logits_LV = reference(torch.tensor([tokens])).logits[0].log_softmax(-1)
    num_before = len(tokens) - len(second.token_ids_T)
    wanted = [logits_LV[num_before - 1 + n, one].item() for n, one in enumerate(second.token_ids_T)]
    assert tuple(second.logprobs_S) == pytest.approx(wanted, abs=5e-4)
    assert assembly.message is not None
    assert assembly.message.text == second.text
    if "vllm" in replica.log:
        # Whole blocks of keys and values, of 32 tokens.
        assert assembly.cached_tokens == (num_before - len(reported)) // 32 * 32 > 0


async def test_a_stop_text_ends_a_turn_and_its_tokens_stay(replica, reference):
    async with connected(replica, reference) as client:
        _, whole, _ = await turn(client, ASKED, temperature=0.0)
        text = whole.text[4:6]
        end = whole.text.index(text) + 2
        _, cut, _ = await turn(client, ASKED, temperature=0.0, stop=(text,))
        # Its stream broke within the stop text, and behind it.
        found = [cut]
        for length in (end - 1, end):
            begun = GroupAssembly(1)
            await turn(client, ASKED, into=begun, temperature=0.0, max_tokens=length)
            begun._completions_G[0].finished = None
            _, again, _ = await turn(client, ASKED, into=begun, temperature=0.0, stop=(text,))
            found.append(again)
    for one in found:
        assert one.token_ids_T == whole.token_ids_T[:end]
        assert (one.text, one.finish_reason) == (whole.text[:end], "stop")


async def test_a_turn_gets_the_room_that_is_left(replica, reference):
    most = replicas.MAX_PROMPT_TOKENS + replicas.MAX_TOKENS
    async with connected(replica, reference) as client:
        asked, first, _ = await turn(client, ASKED)
        reported = len((await turn(client, HIGHER, (*asked, *first.token_ids_T), max_tokens=1))[0])
        prefix = asked * (most // len(asked))
        fitting = prefix[: most - reported - 3]
        assert len((await turn(client, HIGHER, fitting))[1].token_ids_T) == 3
        with pytest.raises(PromptTooLongError, match=f"max_tokens is {most}"):
            await turn(client, HIGHER, prefix[: most - reported + 1])
        with pytest.raises(InputError, match="one sample"):
            await turn(client, ASKED, num_samples=2)
