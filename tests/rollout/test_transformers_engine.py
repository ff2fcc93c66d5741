"""What the transformers engine promises beyond the port: the same tokens whatever else happens."""

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from services.rollout.engine import Chunk, GenerationRequest, create_engine
from services.rollout.temperature import check_temperature
from services.rollout.transformers.batch import inverse_cdf, likeliest
from tests.configs import configure
from tests.rollout.versions import patched_shadow_of, shadow_of
from tests.tiny_model import write_tiny_model
from trimaran.errors import BehindError, DeadlineError, TransferError
from trimaran.host.device import pick
from trimaran.types import Message, Sampling, VersionId
from weights.version.manifest import list_digests

TRANSFORMERS = {"engine": "transformers", "device": "cpu"}
MESSAGES = (Message("user", "What is 1 + 2?"),)


@asynccontextmanager
async def started(folder):
    config = configure(model={"path": str(folder), "dtype": "float32"}, rollout=TRANSFORMERS)
    engine: Any = create_engine(config, pick("cpu"))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def loaded(folder):
    """With the folder's weights as version 0.0."""
    async with started(folder) as engine:
        await engine.load_weights(first_version(folder), VersionId(0, 0))
        yield engine


def first_version(folder):
    return shadow_of(folder, load_file(folder / "model.safetensors"))


async def tokens_of(engine, number, *, seed=3, starts=None, num_samples=3):
    starts = starts or dict.fromkeys(range(num_samples), ())
    tokens: dict[int, list[int]] = {index: list(start) for index, start in starts.items()}
    prompt = engine.tokenize(MESSAGES)
    sampling = Sampling(1.0, 24, num_samples, seed)
    async for event in engine.generate(GenerationRequest(number, prompt, sampling, starts)):
        if isinstance(event, Chunk):
            assert event.start == len(tokens[event.index])
            tokens[event.index].extend(event.token_ids_T)
    return tokens


async def test_tokens_do_not_depend_on_what_else_runs(model):
    async with loaded(model) as engine:
        alone = await tokens_of(engine, 5)
        among = await asyncio.gather(*(tokens_of(engine, number) for number in range(8)))
    assert among[5] == alone
    assert len({str(tokens) for tokens in among}) == 8


async def test_tokens_depend_on_seed_group_and_completion(model):
    async with loaded(model) as engine:
        first, again, other = [await tokens_of(engine, 5, seed=seed) for seed in (3, 3, 4)]
    assert first == again != other
    assert len({str(tokens) for tokens in first.values()}) == 3


async def test_a_continuation_makes_the_tokens_that_the_whole_would_have(model):
    async with loaded(model) as engine:
        whole = await tokens_of(engine, 5)
        starts = {0: tuple(whole[0][:7]), 2: tuple(whole[2][:1])}
        assert await tokens_of(engine, 5, starts=starts) == {0: whole[0], 2: whole[2]}


async def test_what_is_loaded_reads_back_and_a_changed_element_is_found(model):
    first, torn = first_version(model), first_version(model)
    digests = dict(enumerate(list_digests(first.manifest)))
    torn.buffer[torn.layout.by_number()[5].start] ^= 1
    everything = ((0, first.manifest.num_blocks),)
    async with loaded(model) as engine:
        assert await engine.read_back(first.manifest, everything) == digests
        await engine.load_weights(torn, VersionId(0, 1))
        wrong = await engine.read_back(first.manifest, everything)
    assert [number for number in digests if wrong[number] != digests[number]] == [5]


async def test_log_probabilities_follow_the_temperature(model):
    async with loaded(model) as engine:
        assert await check_temperature(engine, 16, 60.0)


class HangingShadow:
    """Of a version of which half comes, and the rest when it is let go."""

    changes = None

    def __init__(self, shadow):
        self._tensors = list(shadow.tensors())
        self.reached, self.let_go = threading.Event(), threading.Event()

    def tensors(self):
        for number, (name, tensor) in enumerate(self._tensors):
            if number == len(self._tensors) // 2:
                self.reached.set()
                assert self.let_go.wait(60)
            yield name, tensor


async def test_a_load_that_was_given_up_never_makes_its_version_live(model):
    hanging = HangingShadow(first_version(model))
    async with loaded(model) as engine:
        load = asyncio.create_task(engine.load_weights(hanging, VersionId(0, 1)))
        assert await asyncio.to_thread(hanging.reached.wait, 60)
        load.cancel()  # as a deadline does
        with pytest.raises(asyncio.CancelledError):
            await load
        # It stands behind the load that hangs, and is given up before it has begun.
        behind = asyncio.create_task(engine.load_weights(first_version(model), VersionId(0, 2)))
        await asyncio.sleep(0)
        behind.cancel()
        with pytest.raises(asyncio.CancelledError):
            await behind
        hanging.let_go.set()
        with pytest.raises(BehindError):
            await tokens_of(engine, 5)
        await engine.load_weights(first_version(model), VersionId(0, 3))
        assert await tokens_of(engine, 5)


async def test_a_start_that_hangs_ends_at_its_deadline(model, monkeypatch):
    may_build = threading.Event()
    config = configure(model={"path": str(model)}, start_timeout=0.05, rollout=TRANSFORMERS)
    engine = create_engine(config, pick("cpu"))
    monkeypatch.setattr(engine, "_build", lambda: may_build.wait(60))
    with pytest.raises(DeadlineError, match="start of the transformers engine"):
        await engine.start()
    may_build.set()
    await engine.close()


def test_inverse_cdf_takes_the_first_token_beyond_the_draw():
    probabilities_BV = torch.tensor([[0.2, 0.5, 0.0, 0.3]] * 5)
    draws_B = torch.tensor([0.0, 0.19, 0.21, 0.71, 0.999], dtype=torch.float64)
    assert inverse_cdf(probabilities_BV.log(), draws_B).tolist() == [0, 0, 1, 3, 3]


def test_top_p_leaves_the_least_likely_tokens_out():
    probabilities_BV = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])
    kept_BV = likeliest(probabilities_BV.log(), 0.7).exp()
    assert kept_BV.tolist() == [pytest.approx([0, 0.5, 0.3]), pytest.approx([0, 0, 0.8])]
    assert torch.allclose(likeliest(probabilities_BV.log(), 1.0).exp(), probabilities_BV)
    draws_B = torch.tensor([0.99, 0.0], dtype=torch.float64)
    assert inverse_cdf(likeliest(probabilities_BV.log(), 0.7), draws_B).tolist() == [2, 2]


@pytest.fixture(scope="module", params=["llama", "qwen2_moe", "qwen3_moe"])
def folder(request, model, tmp_path_factory):
    """transformers keeps all experts of a layer in one parameter, folders have matrices of each."""
    if request.param == "llama":
        return model
    return write_tiny_model(tmp_path_factory.mktemp("models") / request.param, request.param)


async def test_what_is_loaded_computes_what_transformers_does(folder):
    wanted = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    async with loaded(folder) as engine:
        found = engine._model.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


async def test_a_version_that_lacks_an_expert_is_refused(tmp_path):
    folder = write_tiny_model(tmp_path / "model", "qwen3_moe")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.2.up_proj.weight"]
    lacks = r"lacks model\.layers\.1\.mlp\.experts\.gate_up_proj, or a part of it"
    async with started(folder) as engine:
        with pytest.raises(TransferError, match=lacks):
            await engine.load_weights(shadow_of(None, tensors), VersionId(0, 0))


async def test_after_a_delta_changed_elements_alone_are_written(folder):
    """In this process the shadow is the engine's to read: what is not in the changes is made wrong."""
    old = load_file(folder / "model.safetensors")
    torch.manual_seed(0)
    new = {n: torch.where(torch.rand(v.shape) < 0.02, v + 1, v) for n, v in old.items()}
    patched = patched_shadow_of(folder, old, new)
    everything = ((0, patched.manifest.num_blocks),)
    right = dict(enumerate(list_digests(patched.manifest)))
    whole = patched.buffer.clone()
    patched.buffer.zero_()
    async with loaded(folder) as engine:
        await engine.load_weights(patched, VersionId(0, 1))
        assert await engine.read_back(patched.manifest, everything) == right
        await engine.sleep()
        patched.buffer.copy_(whole)
        await engine.load_weights(patched, VersionId(0, 1))  # over nothing
        assert await engine.read_back(patched.manifest, everything) == right
