"""What the transformers engine promises beyond the port: the same tokens whatever else happens."""

import asyncio
import threading
from typing import Any

import pytest
import torch

from services.rollout.engine import Chunk, GenerationRequest, create_engine
from services.rollout.temperature import check_temperature
from services.rollout.transformers.batch import inverse_cdf, likeliest
from tests.rollout.versions import patched_shadow_of, shadow_of
from tests.tiny_model import write_tiny_model
from trimaran.config import parse_config
from trimaran.errors import BehindError, DeadlineError, TransferError
from trimaran.host.device import pick
from trimaran.types import Message, Sampling, VersionId
from weights.version.manifest import list_digests

MESSAGES = (Message("user", "What is 1 + 2?"),)


@pytest.fixture(scope="module")
def with_engine(model):
    """with_engine(body) -> await body(engine), with random weights loaded as version 0.0."""

    def run(body):
        async def main():
            engine = create_engine(config_of(model), pick("cpu"))
            await engine.start()
            try:
                await engine.load_weights(first_version(model), VersionId(0, 0))
                return await body(engine)
            finally:
                await engine.close()

        return asyncio.run(main())

    return run


def config_of(model):
    return parse_config(
        {
            "model": {"path": str(model), "dtype": "float32"},
            "data": {"train": "unused.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
            "rollout": {"engine": "transformers", "device": "cpu"},
        }
    )


def first_version(model):
    from safetensors.torch import load_file

    return shadow_of(model, load_file(model / "model.safetensors"))


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


def test_tokens_do_not_depend_on_what_else_runs(with_engine):
    async def body(engine):
        alone = await tokens_of(engine, 5)
        among = await asyncio.gather(*(tokens_of(engine, number) for number in range(8)))
        return alone, among

    alone, among = with_engine(body)
    assert among[5] == alone
    assert len({str(tokens) for tokens in among}) == 8


def test_tokens_depend_on_seed_group_and_completion(with_engine):
    async def body(engine):
        return [await tokens_of(engine, 5, seed=seed) for seed in (3, 3, 4)]

    first, again, other = with_engine(body)
    assert first == again != other
    assert len({str(tokens) for tokens in first.values()}) == 3


def test_a_continuation_makes_the_tokens_that_the_whole_would_have(with_engine):
    async def body(engine):
        whole = await tokens_of(engine, 5)
        starts = {0: tuple(whole[0][:7]), 2: tuple(whole[2][:1])}
        return whole, await tokens_of(engine, 5, starts=starts)

    whole, continued = with_engine(body)
    assert continued == {0: whole[0], 2: whole[2]}


def test_what_is_loaded_reads_back_and_a_changed_element_is_found(with_engine, model):
    first = first_version(model)
    digests = dict(enumerate(list_digests(first.manifest)))
    torn = first_version(model)
    torn.buffer[torn.layout.by_number()[5].start] ^= 1
    everything = ((0, first.manifest.num_blocks),)

    async def body(engine):
        right = await engine.read_back(first.manifest, everything)
        await engine.load_weights(torn, VersionId(0, 1))
        return right, await engine.read_back(first.manifest, everything)

    right, wrong = with_engine(body)
    assert right == digests
    assert [number for number in digests if wrong[number] != digests[number]] == [5]


def test_log_probabilities_follow_the_temperature(with_engine, caplog):
    with_engine(lambda engine: check_temperature(engine, 16, 60.0))
    assert not caplog.records


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


def test_a_load_that_was_given_up_never_makes_its_version_live(with_engine, model):
    hanging = HangingShadow(first_version(model))

    async def body(engine):
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
        return await tokens_of(engine, 5)

    assert with_engine(body)


async def test_a_start_that_hangs_ends_at_its_deadline(model, monkeypatch):
    config = config_of(model).model_copy(update={"start_timeout": 0.05})
    may_build = threading.Event()

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
    assert likeliest(probabilities_BV.log(), 1.0).exp().tolist()[0] == pytest.approx(
        [0.2, 0.5, 0.3]
    )
    draws_B = torch.tensor([0.99, 0.0], dtype=torch.float64)
    assert inverse_cdf(likeliest(probabilities_BV.log(), 0.7), draws_B).tolist() == [2, 2]


@pytest.fixture(scope="module", params=["llama", "qwen2_moe", "qwen3_moe"])
def folder(request, model, tmp_path_factory):
    """transformers keeps all experts of a layer in one parameter, folders have matrices of each."""
    if request.param == "llama":
        return model
    return write_tiny_model(tmp_path_factory.mktemp("models") / request.param, request.param)


def test_what_is_loaded_computes_what_transformers_does(folder):
    from transformers import AutoModelForCausalLM

    async def main():
        engine: Any = create_engine(config_of(folder), pick("cpu"))
        await engine.start()
        try:
            await engine.load_weights(first_version(folder), VersionId(0, 0))
            return engine._model.state_dict()
        finally:
            await engine.close()

    wanted = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    found = asyncio.run(main())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_a_version_that_lacks_an_expert_is_refused(tmp_path):
    from safetensors.torch import load_file

    folder = write_tiny_model(tmp_path / "model", "qwen3_moe")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.2.up_proj.weight"]

    async def main():
        engine = create_engine(config_of(folder), pick("cpu"))
        await engine.start()
        try:
            await engine.load_weights(shadow_of(None, tensors), VersionId(0, 0))
        finally:
            await engine.close()

    lacks = r"lacks model\.layers\.1\.mlp\.experts\.gate_up_proj, or a part of it"
    with pytest.raises(TransferError, match=lacks):
        asyncio.run(main())


def test_after_a_delta_changed_elements_alone_are_written(folder):
    """In this process the shadow is the engine's to read: what is not in the changes is made wrong."""
    from safetensors.torch import load_file

    model = folder
    old = load_file(model / "model.safetensors")
    torch.manual_seed(0)
    new = {n: torch.where(torch.rand(v.shape) < 0.02, v + 1, v) for n, v in old.items()}

    async def main():
        engine: Any = create_engine(config_of(model), pick("cpu"))
        await engine.start()
        try:
            patched = patched_shadow_of(model, old, new)
            everything = ((0, patched.manifest.num_blocks),)
            whole = patched.buffer.clone()
            patched.buffer.zero_()
            await engine.load_weights(first_version(model), VersionId(0, 0))
            await engine.load_weights(patched, VersionId(0, 1))
            alone = await engine.read_back(patched.manifest, everything)
            await engine.sleep()
            patched.buffer.copy_(whole)
            await engine.load_weights(patched, VersionId(0, 1))  # over nothing
            return patched, alone, await engine.read_back(patched.manifest, everything)
        finally:
            await engine.close()

    patched, *found = asyncio.run(main())
    right = dict(enumerate(list_digests(patched.manifest)))
    assert found == [right, right]
