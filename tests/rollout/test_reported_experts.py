"""The experts that vLLM says it chose, against forward passes of plain transformers."""

import asyncio
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from tests.rollout import replicas
from tests.rollout.replicas import generate, sampling
from tests.rollout.test_service import interrupted
from tests.tiny_model import EXPERTS, SHAPE, write_tiny_model
from trimaran.clients import GroupAssembly

pytestmark = pytest.mark.e2e

LAYERS, CHOSEN = 2, 2
ATTEMPTS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    shape = SHAPE | EXPERTS["qwen3_moe"] | {"max_position_embeddings": 2048}
    return write_tiny_model(tmp_path_factory.mktemp("models") / "experts", "qwen3_moe", shape=shape)


@pytest.fixture(scope="module")
def replica(folder, tmp_path_factory):
    trainer = {"router": {"replay": True}}
    running = replicas.start_replica("vllm", folder, tmp_path_factory.mktemp("r"), trainer=trainer)
    yield running
    replicas.stop(running)


def choices(folder, weights, token_ids):
    """Sorted, [tokens, LAYERS, CHOSEN], of the model with these weights."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for name, value in fused(weights).items():
            model.get_parameter(name).copy_(value)
    found = []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda *one: found.append(one[2][2]))
    with torch.no_grad():
        model(input_ids=torch.tensor([token_ids]))
    return torch.stack(found, dim=1).sort(-1).values


def fused(weights):
    """As transformers holds a layer's experts: in two parameters."""
    whole = {name: value for name, value in weights.items() if ".experts." not in name}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}.mlp.experts."
        each = [
            [weights[f"{prefix}{number}.{part}_proj.weight"] for part in ("gate", "up", "down")]
            for number in range(4)
        ]
        whole[f"{prefix}gate_up_proj"] = torch.stack([torch.cat(one[:2]) for one in each])
        whole[f"{prefix}down_proj"] = torch.stack([one[2] for one in each])
    return whole


def reported(data):
    numbers = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
    return numbers.view(-1, LAYERS, CHOSEN).sort(-1).values


def same(reported, wanted):
    """Two logits may lie within rounding."""
    assert reported.shape == wanted.shape
    return (reported == wanted).double().mean() > 0.99


def tokens_of(group, completion):
    """All that were read."""
    return [*group.prompt_token_ids, *completion.token_ids_T[:-1]]


async def test_of_fresh_and_of_continued_completions(replica, folder):
    async with replica.client() as client:
        await replica.publish(client, load_file(folder / "model.safetensors"))
        # Longer than a block of keys and values, and the second time from the cache.
        groups = [await generate(client, sampling(3, 80), number=4) for _ in range(2)]
        lengths = [len(one.token_ids_T) // 2 for one in groups[0].completions_G]
        begun = interrupted(groups[0], lengths)
        groups.append(await generate(client, sampling(3, 80), number=4, into=begun))
    weights = load_file(folder / "model.safetensors")
    for group in groups:
        for completion in group.completions_G:
            wanted = choices(folder, weights, tokens_of(group, completion))
            num_prompt = len(group.prompt_token_ids)
            assert same(reported(group.prompt_experts), wanted[:num_prompt])
            assert same(reported(completion.experts), wanted[num_prompt:])


async def test_of_a_completion_that_a_stop_text_ends(replica, folder):
    async with replica.client() as client:
        await replica.publish(client, load_file(folder / "model.safetensors"))
        whole = await generate(client, sampling(1, 40, 0.0))
        ending = replace(sampling(1, 40, 0.0), stop=(whole.completions_G[0].text[8:10],))
        group = await generate(client, ending)
    (completion,) = group.completions_G
    assert completion.finish_reason == "stop" and len(completion.token_ids_T) < 40
    weights = load_file(folder / "model.safetensors")
    wanted = choices(folder, weights, tokens_of(group, completion))
    found = torch.cat([reported(group.prompt_experts), reported(completion.experts)])
    assert same(found, wanted)


async def test_tokens_before_an_update_keep_what_made_them(replica, folder):
    old = load_file(folder / "model.safetensors")
    torch.manual_seed(7)
    new = {name: value + 0.03 * torch.randn_like(value) for name, value in old.items()}
    new["model.embed_tokens.weight"] = old["model.embed_tokens.weight"]

    async def cross(client):
        first = await replica.publish(client, old)
        staged = await replica.stage(client, new)
        assembly = GroupAssembly(4)
        asked = generate(client, sampling(4, 1000), least=first, into=assembly)
        task = asyncio.create_task(asked)
        await replicas.until_tokens(assembly)
        await client.commit_weights(staged, replicas.MAKER, replicas.TIMEOUT)
        group = await task
        return first, group, [one for one in group.completions_G if len(one.segments) == 2]

    async with replica.client() as client:
        first, group, crossed = await cross(client)
        for _ in range(ATTEMPTS):
            if not crossed:
                first, group, crossed = await cross(client)
    assert crossed, "no completion was under way when the weights changed"
    for completion in crossed:
        read, num_prompt = tokens_of(group, completion), len(group.prompt_token_ids)
        before, after = (choices(folder, weights, read) for weights in (old, new))
        (begin, _) = completion.segments
        assert begin.version == first
        # A token's own choices are made when the next one is.
        end = num_prompt + begin.end - 1
        experts = torch.cat([reported(group.prompt_experts), reported(completion.experts)])
        assert same(experts[:end], before[:end])
        assert same(experts[end:], after[end:])
        assert not same(experts[end:], before[end:])
