"""Routers that choose the engine's experts: against plain transformers with the same choices forced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.trainer.exchange.shared_batch import in_chunks, without_experts
from services.trainer.megatron.experts import shared_experts
from services.trainer.megatron.experts.shared_experts import plan_shares
from services.trainer.step.batch import PackedBatch, StepBatch, pack
from services.trainer.step.chosen_experts import (
    StepExperts,
    check_experts,
    join_experts,
)
from services.trainer.step.updates import plan_updates
from tests.trainer.batches import random_batch, scored_group
from tests.trainer.conftest import MakeConfig
from tests.trainer.episodes import Tokens, episode
from tests.trainer.models import unfused
from tests.trainer.processes import running_ranks
from tests.trainer.test_policy import CPU, add_up, gradients_of, logprobs_of, make_policy
from trimaran.clients import trainer as trainer_client
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError
from trimaran.model.folder import ModelFacts, read_model_folder
from trimaran.model.trainer_layout import check_trainer_layout
from trimaran.types import TrainingBatch

LAYERS, EXPERTS, CHOSEN = 2, 4, 2
FACTS = replace(
    ModelFacts("qwen3_moe", LAYERS, 32, 48, 4, 2, 12, 96, False, 128),
    num_experts=EXPERTS,
    experts_per_token=CHOSEN,
)
REPLAY: dict[str, Any] = {"router": {"replay": True}}


def random_experts(tokens: int, generator: torch.Generator) -> bytes:
    """Of each token and layer two different ones of four."""
    scores = torch.rand(tokens, LAYERS, EXPERTS, generator=generator)
    return scores.topk(CHOSEN).indices.to(torch.uint8).numpy().tobytes()


def with_experts(batch: TrainingBatch, answers: int | None = None) -> TrainingBatch:
    """Random choices for all tokens, and so others than any router would make. `answers`: of a group so
    many completions alone, with their prompt."""
    generator = torch.Generator().manual_seed(batch.step)
    groups = []
    for scored in batch.groups:
        group = scored.group
        answered = [
            replace(one, experts=random_experts(len(one.token_ids_T) - 1, generator))
            for one in group.completions_G[:answers]
        ]
        prompt = random_experts(len(group.prompt_token_ids), generator)
        group = replace(group, completions_G=tuple(answered), prompt_experts=prompt)
        groups.append(replace(scored, group=group, verdicts_G=scored.verdicts_G[:answers]))
    return replace(batch, groups=tuple(groups))


def packed_of(batch: TrainingBatch) -> PackedBatch:
    step = StepBatch.of(batch.groups, mask_truncated=False)
    return pack(step, list(enumerate(step.members)), CPU, told_in(step))


def told_in(step: StepBatch) -> StepExperts:
    return StepExperts.reported(step.groups, step.completions_B)


def numbers_of(packed: PackedBatch) -> torch.Tensor:
    assert packed.experts is not None
    return packed.experts.numbers(FACTS)


def made_by(policy: Any, packed: PackedBatch) -> PackedBatch:
    """With the choices that the policy's routers make themselves."""
    found: list[torch.Tensor] = []
    layers = policy._stages[0].decoder.layers
    handles = [
        layer.mlp.router.register_forward_hook(lambda *one: found.append(one[2][1]))
        for layer in layers
    ]
    logprobs_of(policy, replace(packed, experts=None))
    for handle in handles:
        handle.remove()
    chosen_NLE = torch.stack(found, dim=1).to(torch.uint8)
    data_NX = chosen_NLE.topk(CHOSEN).indices.to(torch.uint8).flatten(1).numpy()
    return replace(packed, experts=join_experts([(data_NX, len(data_NX))]))


class ForcedGate:
    """Instead of the forward pass of transformers' router."""

    def __init__(self, gate: Any, chosen: list[torch.Tensor]) -> None:
        """`chosen`: of each sequence in turn, [tokens, CHOSEN]."""
        self.gate, self.chosen = gate, chosen

    def __call__(self, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        indices = self.chosen.pop(0).long()
        logits = hidden @ self.gate.weight.T
        weights = logits.float().softmax(-1).gather(-1, indices)
        if getattr(self.gate, "norm_topk_prob", False):
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights.to(logits.dtype), indices


def forced_logprobs(model: Any, packed: PackedBatch) -> torch.Tensor:
    """Of groups with one completion each."""
    lengths = [group.num_tokens for group in packed.groups]
    for number, layer in enumerate(model.model.layers):
        chosen = list(numbers_of(packed)[:, number].split(lengths))
        layer.mlp.gate.forward = ForcedGate(layer.mlp.gate, chosen)
    logits = [model(input_ids=one[None]).logits[0] for one in packed.token_ids_N.split(lengths)]
    logprobs = (torch.cat(logits)[packed.sources_M] / 0.7).log_softmax(-1)
    return logprobs.gather(-1, packed.targets_M[:, None])[:, 0]


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize("recompute", [False, True])
def test_forced_choices_give_what_transformers_gives_with_them(
    family: str, recompute: bool, make_config: MakeConfig
) -> None:
    config = make_config(family, trainer={**REPLAY, "recompute": recompute})
    policy = make_policy(config)
    model: Any = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    batches = [packed_of(with_experts(random_batch(step), answers=1)) for step in (1, 2)]
    wanted = [forced_logprobs(model, packed) for packed in batches]
    for packed, plain in zip(batches, wanted, strict=True):
        torch.testing.assert_close(logprobs_of(policy, packed), plain, rtol=0, atol=4e-6)
        assert (logprobs_of(policy, replace(packed, experts=None)) - plain).abs().max() > 0.03
    policy.zero_gradients()
    policy.forward_backward(batches, add_up)
    sum(one.sum() for one in wanted).backward()  # type: ignore[union-attr]
    found = gradients_of(policy)
    named: Any = model.named_parameters()
    gradients = unfused({name: parameter.grad for name, parameter in named})
    assert gradients["model.layers.0.mlp.gate.weight"].abs().max() > 1e-3
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.usefixtures("single_rank")
def test_own_choices_replayed_change_nothing_and_hold_when_the_router_moves(
    make_config: MakeConfig,
) -> None:
    policy = make_policy(make_config("qwen3_moe", trainer=REPLAY))
    packed = made_by(policy, packed_of(random_batch(1)))
    alone = replace(packed, experts=None)
    assert torch.equal(logprobs_of(policy, packed), logprobs_of(policy, alone))
    weights = dict(policy._stages[0].named_weights())
    with torch.no_grad():
        for layer in range(LAYERS):
            router = weights[f"decoder.layers.{layer}.mlp.router.weight"]
            torch.manual_seed(layer)
            router.add_(0.1 * router.std() * torch.randn_like(router))
    moved = numbers_of(made_by(policy, packed)) != numbers_of(packed)
    assert 0 < moved.double().mean() < 0.3  # some choices would fall otherwise
    policy.zero_gradients()
    policy.forward_backward([packed], add_up)
    metrics = policy.take_metrics()
    assert metrics["trainer/experts/replay/share"] == 1.0
    assert 0 < metrics["trainer/experts/replay/differs/share"] < 0.3
    own = (logprobs_of(policy, alone) - logprobs_of(policy, packed)).abs().max()
    assert own > 1e-3


def tell(token_ids: Sequence[int]) -> bytes:
    """Of each token its own number."""
    return bytes(token for token in token_ids for _ in range(LAYERS * CHOSEN))


def test_those_of_an_episode_are_of_all_that_is_read_of_its_sequences() -> None:
    own = Tokens((7, 30, 8, 31), (True, False, True, False))
    branch = Tokens((40, 9, 41, 3), (False, True, False, True))
    one = replace(episode(own, branch), experts=tell(own.ids[:2]))
    known = replace(one, branches=(replace(one.branches[0], experts=tell(branch.ids[:3])),))
    group = scored_group([4, 5], [known, one], [1.0, 0.0])
    check_experts([group], FACTS)
    step = StepBatch.of([group], mask_truncated=False)
    packed = pack(step, [(0, (1, 0))], CPU, told_in(step))
    assert packed.experts is not None
    numbers = packed.experts.numbers(replace(FACTS, num_experts=256))[:, 0, 0]
    assert packed.token_ids_N.tolist() == [4, 5, *[7, 30, 40, 9, 41] * 2]
    # Of the first they are not known in the branch, and so in none of its tokens.
    assert numbers.tolist() == [*[-1] * 7, 7, 30, 40, 9, 41]
    parts = step.by_sequence()
    apart = pack(parts, [(0, (2, 3, 0))], CPU, told_in(parts))
    assert numbers_of(apart)[:, 0, 0].tolist() == [-1, -1, 7, 30, -1, -1, -1, 7, 30]
    assert apart.places_M.tolist() == [4, 5, 6, 7, 0, 1]
    long = replace(known, experts=tell(own.ids[:3]))
    with pytest.raises(InputError, match=r"completion 0 has 12 bytes .* 2 tokens .* have 8"):
        check_experts([scored_group([4], [long], [1.0])], FACTS)
    (shared,) = without_experts(group).group.completions_G[:1]
    assert shared == replace(known, experts=b"", branches=one.branches)


def test_more_than_256_experts_have_two_bytes() -> None:
    wide = torch.tensor([[[300, 2]], [[7, 256]]], dtype=torch.int16)
    packed = join_experts([(None, 1), (wide.flatten(1).numpy().view(np.uint8), 2)])
    assert packed is not None
    facts = replace(FACTS, num_experts=512)
    assert facts.choice_bytes == 2 * FACTS.choice_bytes == 4
    assert packed.numbers(facts).tolist() == [[[-1, -1]], *wide.tolist()]
    assert join_experts([(None, 3)]) is None


def test_choices_of_another_model_or_of_other_tokens_are_refused_at_the_door() -> None:
    groups = with_experts(random_batch(1)).groups
    check_experts(groups, FACTS)
    check_experts(random_batch(1).groups, FACTS)  # those that are not told
    with pytest.raises(InputError, match=r"group 0: the prompt has \d+ bytes .* of 3 layers"):
        check_experts(groups, replace(FACTS, num_layers=3))
    group = groups[1].group
    short = replace(group.completions_G[2], experts=group.completions_G[2].experts[:-1])
    group = replace(group, completions_G=(*group.completions_G[:2], short))
    with pytest.raises(InputError, match=r"group 1: completion 2 has \d+ bytes"):
        check_experts([replace(groups[1], group=group)], FACTS)


@pytest.mark.parametrize(
    "layout",
    [
        ParallelLayout(),
        ParallelLayout(data=2, pipeline=2),
        ParallelLayout(tensor=2, context=2, data=2),
        ParallelLayout(pipeline=2),
        ParallelLayout(pipeline=2, layers=(0, LAYERS)),
    ],
    ids=str,
)
def test_each_leader_gets_what_it_computes_and_no_byte_leaves_twice(
    layout: ParallelLayout, make_config: MakeConfig
) -> None:
    config = make_config("qwen3_moe", trainer={"data_parallel": layout.data})
    step = StepBatch.of(with_experts(random_batch(1)).groups, mask_truncated=False)
    told = told_in(step)
    every = frozenset(range(len(step.completions_B)))
    updates = plan_updates(step, every, {}, config, 1, 0, 0.01, lambda _: 0.0)
    shares = plan_shares(updates, [True] * len(told.data), FACTS, layout, 1)
    assert len(shares) == layout.data * layout.pipeline
    found: dict[tuple[int, int], Any] = {}
    for share in shares.values():
        data = next(in_chunks(share.cut(told), share.size))
        for number, own in share.join(data, told.num_prompts).data.items():
            for place, layer in enumerate(share.layers):
                one = own.reshape(len(own), -1, CHOSEN)[:, place]
                before = found.setdefault((number, layer), one)
                # A prompt's go to each rank that computes some of its completions.
                assert np.array_equal(one, before)
                assert before is one or number < told.num_prompts
    for number, whole in told.data.items():
        for layer in range(LAYERS):
            wanted = whole.reshape(len(whole), LAYERS, CHOSEN)[:, layer]
            assert np.array_equal(found[number, layer], wanted)


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("is_told", [True, False])
def test_choices_arrive_in_rounds(
    is_told: bool, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_experts, "SCATTERED_BYTES", 7)
    config = make_config("qwen3_moe", trainer=REPLAY)
    batch = with_experts(random_batch(1)) if is_told else random_batch(1)
    step = StepBatch.of(batch.groups, mask_truncated=False)
    every = frozenset(range(len(step.completions_B)))
    updates = plan_updates(step, every, {}, config, 1, 0, 0.01, lambda _: 0.0)
    shared = make_policy(config).share_experts(updates)
    assert shared[0].experts is not None
    told = told_in(step).data
    assert shared[0].experts.data.keys() == told.keys()
    assert bool(told) == is_told
    for number, data in shared[0].experts.data.items():
        assert np.array_equal(data, told[number])


def test_streams_are_cut_into_chunks_of_one_length() -> None:
    parts = [np.array(one, np.uint8) for one in ([1, 2, 3], [], [4], [5, 6, 7, 8])]
    chunks = in_chunks(iter(parts), 3)
    assert [next(chunks).tolist() for _ in range(4)] == [[1, 2, 3], [4, 5, 6], [7, 8, 0], [0, 0, 0]]


def test_a_model_without_experts_replays_none(make_config: MakeConfig) -> None:
    config = make_config("llama", trainer=REPLAY)
    with pytest.raises(InputError, match="trainer.router: the model has no experts"):
        check_trainer_layout(read_model_folder(config.model.path), config.trainer)


LAYOUTS: tuple[dict[str, Any], ...] = (
    {"tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 2},
    {"data_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 2},
    {"pipeline_parallel": 2, "recompute": True},
    {"pipeline_parallel": 2, "pipeline_layers": [0, LAYERS]},
    {"context_parallel": 2, "expert_parallel": 2},
    {"data_parallel": 2, "expert_parallel": 2},
)


@pytest.mark.e2e
@pytest.mark.parametrize("sizes", LAYOUTS, ids=lambda sizes: "-".join(sizes))
async def test_ranks_together_replay_what_one_does(
    sizes: dict[str, Any], make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the groups travel in the batch's message or before it."""

    async def train(name: str, split: dict[str, Any], batch: TrainingBatch) -> dict[str, float]:
        trainer = {**split, **REPLAY, "micro_batch_tokens": 60}
        config = make_config("qwen3_moe", trainer=trainer)
        async with running_ranks(config, tmp_path / name) as client:
            return (await client.train(batch)).metrics

    forced = with_experts(random_batch(1))
    alone = await train("alone", {}, forced)
    monkeypatch.setattr(trainer_client, "PORTION_BYTES", 500)
    together = await train("together", sizes, forced)
    free = await train("free", {}, random_batch(1))
    for name in ("trainer/grad_norm", "trainer/loss", "trainer/computed/logprob_diff/mean"):
        assert together[name] == pytest.approx(alone[name], rel=1e-4)
    assert free["trainer/grad_norm"] != pytest.approx(alone["trainer/grad_norm"], rel=2e-3)
    for name in ("share", "differs/share"):  # a padding token at most
        key = f"trainer/experts/replay/{name}"
        assert together[key] == pytest.approx(alone[key], abs=0.05)
    assert alone["trainer/experts/replay/share"] == 1.0
    assert free["trainer/experts/replay/share"] == 0.0
