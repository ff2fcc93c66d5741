"""Both engines behind the real server, in a process of its own, over gRPC and gloo."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import replace

import psutil
import pytest
import torch
import transformers

from tests.rollout import replicas
from tests.rollout.replicas import generate, sampling
from tests.trimaran.telemetry.test_exposition import values
from tests.weight_sync.ends import until
from trimaran.clients import GroupAssembly, MetricsClient
from trimaran.errors import (
    BehindError,
    InputError,
    OutOfOrderError,
    PromptTooLongError,
    TransferError,
)
from trimaran.types import Message, PolicyVersion, Prompt, TransferLimits, VersionId
from trimaran.v1 import rollout_pb2
from trimaran.wire import messages as wire
from trimaran.wire import rpc
from weights.version.manifest import list_digests

pytestmark = pytest.mark.e2e

END = 1
EMBEDDING = "model.embed_tokens.weight"
TOLERANCE = 5e-4
"""Of a log-probability in float32: rounding reached 1e-4 once in 4000 tokens of this random model;
a token under wrong weights is off by 0.1 and more."""


@pytest.fixture(scope="module", params=["transformers", "vllm"])
def replica(request, model, tmp_path_factory):
    running = replicas.start_replica(
        request.param, model, tmp_path_factory.mktemp(f"replica-{request.param}")
    )
    yield running
    replicas.stop(running)


@pytest.fixture(scope="module")
def reference(model):
    return transformers.AutoModelForCausalLM.from_pretrained(model).eval()


@pytest.fixture(scope="module")
def weights(reference):
    """The version that every test starts from."""
    return {name: value.detach().clone() for name, value in reference.named_parameters()}


@pytest.fixture(scope="module")
def other_weights(weights):
    torch.manual_seed(7)
    noisy = {name: value + 0.03 * torch.randn_like(value) for name, value in weights.items()}
    return noisy | {EMBEDDING: weights[EMBEDDING]}


class TooLateError(AssertionError):
    """The generation was over before what was to interrupt it came: on a slow machine, try again."""


async def in_time(replica, body):
    async with replica.client() as client:
        for _ in range(4):
            with suppress(TooLateError):
                return await body(client)
        await body(client)


async def is_cut_short(task, message=""):
    """Awaits a generation that must end with a BehindError."""
    with pytest.raises(BehindError, match=message or None):
        await task
        raise TooLateError


def logprobs_of(reference, weights, prompt_token_ids, token_ids, temperature):
    reference.load_state_dict(weights, strict=False)
    tokens_1L = torch.tensor([[*prompt_token_ids, *token_ids]])
    with torch.no_grad():
        logits_LV = reference(tokens_1L).logits[0, len(prompt_token_ids) - 1 : -1]
    logprobs_LV = (logits_LV / temperature).log_softmax(-1)
    return logprobs_LV.gather(-1, torch.tensor(token_ids)[:, None])[:, 0]


def assert_made_by(reference, weights_of, group, completion, temperature=1.0):
    """Each segment's log-probabilities are those of its version, given everything before it."""
    assert completion.segments[0].start == 0
    assert completion.segments[-1].end == len(completion.token_ids_T)
    for segment in completion.segments:
        expected = logprobs_of(
            reference,
            weights_of[segment.version],
            group.prompt_token_ids,
            completion.token_ids_T,
            temperature,
        )[segment.start : segment.end]
        found = torch.tensor(completion.logprobs_S[segment.start : segment.end])
        assert (found - expected).abs().max() < TOLERANCE, segment


async def test_nothing_is_generated_before_the_first_version(replica):
    async with replica.client() as client:
        if replica.num_published == 0:
            with pytest.raises(BehindError, match="rollout-0"):
                await generate(client, sampling(1, 4))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_those_of_the_model_at_the_sampling_temperature(
    replica, reference, weights, temperature
):
    async with replica.client() as client:
        version = await replica.publish(client, weights)
        group = await generate(client, sampling(6, 24, temperature), least=version)
        assert len({completion.token_ids_T for completion in group.completions_G}) == 6
        for completion in group.completions_G:
            assert_made_by(reference, {version: weights}, group, completion, temperature)
            (segment,) = completion.segments
            assert segment.replica == "rollout-0"
            assert completion.finish_reason == "length"
            assert len(completion.token_ids_T) == 24


async def test_temperature_zero_takes_the_most_likely_token(replica, reference, weights):
    async with replica.client() as client:
        version = await replica.publish(client, weights)
        group = await generate(client, sampling(2, 16, 0.0), least=version)
        first, second = group.completions_G
        assert first.token_ids_T == second.token_ids_T
        assert_made_by(reference, {version: weights}, group, first)
        reference.load_state_dict(weights, strict=False)
        prompt = torch.tensor([group.prompt_token_ids])
        expected = reference.generate(prompt, do_sample=False, max_new_tokens=16, eos_token_id=END)
        assert first.token_ids_T == tuple(expected[0, prompt.shape[1] :].tolist())


async def test_top_p_draws_from_the_likeliest_tokens_alone(replica, weights):
    async with replica.client() as client:
        version = await replica.publish(client, weights)
        greedy = await generate(client, sampling(1, 16, 0.0), least=version)
        drawn = await generate(client, replace(sampling(3, 16), top_p=1e-6), least=version)
        wanted = greedy.completions_G[0].token_ids_T
        assert [completion.token_ids_T for completion in drawn.completions_G] == [wanted] * 3


async def test_prometheus_sees_the_tokens_and_the_pause(replica, weights):
    async def tokens(address):
        async with MetricsClient(address) as process:
            reported = values(await process.get_metrics())
        assert reported["trimaran_rollout_running_completions",] == 0
        assert reported["trimaran_rollout_pause_seconds",] > 0
        return reported["trimaran_rollout_tokens_total",]

    async with replica.client() as client:
        version = await replica.publish(client, weights)
        before = await tokens(client.address)
        group = await generate(client, sampling(2, 16), least=version)
        made = sum(len(each.token_ids_T) for each in group.completions_G)
        assert await tokens(client.address) == before + made


async def test_the_end_token_ends_a_completion_and_stays_its_last_token(
    replica, reference, weights, model
):
    ending = dict(weights)
    ending[EMBEDDING] = weights[EMBEDDING].clone()
    ending[EMBEDDING][END] = torch.randn(128, generator=torch.manual_seed(3))
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)

    async with replica.client() as client:
        version = await replica.publish(client, ending)
        group = await generate(client, sampling(8, 64), least=version)
        stopped = [c for c in group.completions_G if c.finish_reason == "stop"]
        assert stopped
        for completion in stopped:
            assert completion.token_ids_T[-1] == END
            assert END not in completion.token_ids_T[:-1]
            assert completion.text == tokenizer.decode(
                completion.token_ids_T[:-1], skip_special_tokens=True
            )
            assert_made_by(reference, {version: ending}, group, completion)


async def test_an_interrupted_group_goes_on_from_its_prefixes(replica, reference, weights):
    async with replica.client() as client:
        version = await replica.publish(client, weights)
        whole = await generate(client, sampling(3, 20), number=4, least=version)
        begun = interrupted(whole, [5, 0, 20])
        first, _, last = (completion.token_ids_T for completion in whole.completions_G)
        group = await generate(client, sampling(3, 20), number=4, least=version, into=begun)
        for completion, prefix in zip(group.completions_G, (first[:5], (), last), strict=True):
            assert completion.token_ids_T[: len(prefix)] == prefix
            assert (len(completion.token_ids_T), completion.finish_reason) == (20, "length")
            assert len(completion.text) > 0
            assert_made_by(reference, {version: weights}, group, completion)


def interrupted(group, lengths):
    """What a caller holds when the stream of `group` broke after so many tokens a completion."""
    assembly = GroupAssembly(len(lengths))
    opened = rollout_pb2.Opened(
        prompt_token_ids=wire.encode_token_ids(group.prompt_token_ids),
        image_digest=group.image_digest,
    )
    assembly.take(rollout_pb2.GenerateResponse(opened=opened))
    for index, length in enumerate(lengths):
        completion = group.completions_G[index]
        segment = completion.segments[0]
        chunk = rollout_pb2.SegmentChunk(
            index=index,
            segment=wire.encode_segment(segment),
            token_ids=wire.encode_token_ids(completion.token_ids_T[:length]),
            logprobs=wire.encode_logprobs(completion.logprobs_S[:length]),
        )
        chunk.segment.end = length
        if length:
            assembly.take(rollout_pb2.GenerateResponse(chunks=[chunk]))
    return assembly


async def test_a_group_that_crosses_an_update_has_a_segment_for_each_version(
    replica, reference, weights, other_weights
):
    async def body(client):
        old = await replica.publish(client, weights)
        staged = await replica.stage(client, other_weights)
        assembly = GroupAssembly(4)
        task = asyncio.create_task(generate(client, sampling(4, 1000), least=old, into=assembly))
        await replicas.until_tokens(assembly)
        pause = await client.commit_weights(staged, replicas.MAKER, replicas.TIMEOUT)
        assert await client.commit_weights(staged, replicas.MAKER, replicas.TIMEOUT) == 0 < pause
        group = await task
        versions_of = [[s.version for s in c.segments] for c in group.completions_G]
        if all(versions == [old] for versions in versions_of):
            raise TooLateError
        assert [old, staged.version] in versions_of
        made_by = {old: weights, staged.version: other_weights}
        for completion in group.completions_G:
            assert_made_by(reference, made_by, group, completion)

    await in_time(replica, body)


async def test_a_load_that_fails_leaves_no_version_until_one_succeeds(
    replica, reference, weights, other_weights
):
    torn = dict(other_weights)
    del torn["model.layers.1.mlp.up_proj.weight"]

    async def body(client):
        old = await replica.publish(client, weights)
        staged = await replica.stage(client, torn)
        assembly = GroupAssembly(2)
        task = asyncio.create_task(generate(client, sampling(2, 1000), least=old, into=assembly))
        await replicas.until_tokens(assembly)
        with pytest.raises(TransferError, match="lacks"):
            await client.commit_weights(staged, replicas.MAKER, replicas.TIMEOUT)
        await is_cut_short(task)
        for part in assembly.unfinished().values():
            assert {segment.version for segment in part.segments} <= {old}
        with pytest.raises(BehindError):
            await generate(client, sampling(1, 4))
        version = await replica.publish(client, weights)
        group = await generate(client, sampling(2, 16), least=version)
        for completion in group.completions_G:
            assert_made_by(reference, {version: weights}, group, completion)

    await in_time(replica, body)


async def test_what_wrong_weights_made_never_passes_for_what_fixed_ones_make(replica, weights):
    mended = f"{replicas.MAKER}~1"

    async def body(client):
        live = await replica.publish(client, weights)
        assembly = GroupAssembly(2)
        task = asyncio.create_task(generate(client, sampling(2, 1000), least=live, into=assembly))
        await replicas.until_tokens(assembly)
        again = await replica.stage(client, weights, again=True)
        await client.commit_weights(again, mended, replicas.TIMEOUT)
        await is_cut_short(task, "loaded it again")
        for part in assembly.unfinished().values():
            assert {segment.replica for segment in part.segments} <= {replicas.MAKER}
        group = await generate(client, sampling(1, 4), least=live)
        assert {s.replica for c in group.completions_G for s in c.segments} == {mended}
        with pytest.raises(OutOfOrderError, match="not staged"):
            await client.commit_weights(again, f"{replicas.MAKER}~2", replicas.TIMEOUT)

    await in_time(replica, body)


async def test_what_is_loaded_reads_back_as_the_live_version(replica, weights, other_weights):
    async with replica.client() as client:
        live = await replica.publish(client, weights)
        manifest = replica.manifest
        everything = ((0, manifest.num_blocks),)
        await replica.stage(client, other_weights)
        found = await client.read_back(live, everything, replicas.TIMEOUT)
        assert found == list_digests(manifest)
        some = await client.read_back(live, ((2, 4), (6, 7)), replicas.TIMEOUT)
        assert some == (found[2], found[3], found[6])
        with pytest.raises(OutOfOrderError, match=f"holds {live}"):
            await client.read_back(VersionId(0, 99), everything, replicas.TIMEOUT)
        with pytest.raises(InputError, match=f"{manifest.num_blocks} blocks"):
            await client.read_back(live, ((0, manifest.num_blocks + 1),), replicas.TIMEOUT)


async def test_a_stage_and_an_abort_name_their_attempt(replica, weights):
    async with replica.client() as client:
        live = await replica.publish(client, weights)
        manifest = replica.manifest
        policy = PolicyVersion("run", VersionId(0, 99), manifest.root)
        with pytest.raises(InputError, match="attempt is missing"):
            await client.stage_weights(policy, manifest, [], replicas.LIMITS, "")
        with pytest.raises(InputError, match="attempt is missing"):
            await client.abort_weights(live, "")
        for bucket_bytes, timeout in ((0, 1.0), (2**40, 1.0), (1 << 20, 1e9)):
            limits = TransferLimits(bucket_bytes=bucket_bytes, timeout=timeout)
            with pytest.raises(InputError, match="at most"):
                await client.stage_weights(policy, manifest, [], limits, "x")


async def test_staging_that_is_aborted_leaves_the_live_version(replica, weights, other_weights):
    async with replica.client() as client:
        live = await replica.publish(client, weights)
        staged = await replica.stage(client, other_weights)
        await client.abort_weights(staged.version, replicas.ATTEMPT)
        group = await generate(client, sampling(1, 4), least=live)
        assert group.completions_G[0].segments[0].version == live
        with pytest.raises(BehindError):
            await generate(client, sampling(1, 4), least=staged.version)


async def test_a_caller_that_goes_away_frees_the_engine(replica, weights):
    async with replica.client() as client:
        await replica.publish(client, weights)
        request = rollout_pb2.GenerateRequest(
            caller=wire.encode_caller(replicas.CALLER),
            prompt=wire.encode_prompt(replicas.PROMPT),
            sampling=wire.encode_sampling(sampling(4, 1000)),
            min_version=wire.encode_version(VersionId(0, 0)),
        )
        async with aclosing(rpc.stream(client._stub.Generate, request, 60)) as events:
            async for event in events:
                if event.chunks:
                    break
            assert await replica.num_running(client) == 4
        async with asyncio.timeout(60):
            while await replica.num_running(client):
                await asyncio.sleep(0.1)
        assert len((await generate(client, sampling(1, 4))).completions_G) == 1


async def test_a_prompt_that_is_too_long_is_refused(replica, weights):
    long = Prompt("train.jsonl:2", (Message("user", "1" * 100),), "addition", "3")

    async with replica.client() as client:
        await replica.publish(client, weights)
        with pytest.raises(PromptTooLongError, match=r"too long: \d+ tokens"):
            await generate(client, sampling(1, 4), prompt=long)
        with pytest.raises(InputError, match=r"rollout.max_tokens"):
            await generate(client, sampling(1, replicas.MAX_TOKENS + 1))


def test_a_killed_server_takes_its_engine_with_it(replica):
    children = psutil.Process(replica.process.pid).children()
    replica.process.kill()
    replica.process.wait(replicas.TIMEOUT)
    until(lambda: all(is_gone(child) for child in children))


def is_gone(process: psutil.Process) -> bool:
    """A zombie counts: nothing in a container may be there to wait for it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
