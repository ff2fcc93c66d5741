"""The megatron-core policy as one rank, against plain transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.trainer.checkpoints.model_files import load_tensors
from services.trainer.megatron.architecture import read_architecture
from services.trainer.step.batch import PackedBatch, StepBatch, pack
from services.trainer.step.outputs import TokenOutputs
from tests.trainer.batches import completion, random_batch, scored_group
from tests.trainer.conftest import MakeConfig
from tests.trainer.episodes import random_episodes
from tests.trainer.models import FAMILIES, TIED, same, unfused
from tests.trainer.plain_policy import plain_logprobs
from trimaran.config import RunConfig
from trimaran.config.parallel import ParallelLayout
from trimaran.types import ScoredGroup

if TYPE_CHECKING:
    from services.trainer.megatron.policy import MegatronPolicy

pytestmark = pytest.mark.usefixtures("single_rank")
CPU = torch.device("cpu")
WHOLE = ParallelLayout().place(0)


def make_policy(config: RunConfig) -> MegatronPolicy:
    from services.trainer.megatron.policy import MegatronPolicy

    return MegatronPolicy(config, read_architecture(config.model.path), CPU)


def logprobs_of(policy: MegatronPolicy, packed: PackedBatch) -> torch.Tensor:
    return policy.forward([packed])[0].logprobs_M


def add_up(_: int, outputs: TokenOutputs) -> torch.Tensor:
    return outputs.logprobs_M.sum()


def packed_of(groups: Sequence[ScoredGroup]) -> PackedBatch:
    step = StepBatch.of(groups, mask_truncated=False)
    return pack(step, list(enumerate(step.members)), CPU)


def whole_batch() -> PackedBatch:
    """Of answers, and of episodes of several turns and branches."""
    return packed_of((*random_batch(1).groups, *random_episodes(1).groups))


def gradients_of(policy: MegatronPolicy) -> dict[str, torch.Tensor]:
    """By the names of the folder."""
    from services.trainer.megatron.groups import gather_rows
    from services.trainer.megatron.parameters.mapping import list_parts

    weights: Any = policy._trained_weights()
    mains = ((name, weight.main_grad) for name, weight in weights)
    found: dict[str, list[torch.Tensor]] = {}
    for part in list_parts(mains, policy._rules, WHOLE, gather_rows):
        found.setdefault(part.name, []).append(part.tensor.clone())
    return {name: torch.cat(tensors) for name, tensors in found.items()}


def train_once(policy: MegatronPolicy, packed: PackedBatch) -> tuple[int, dict[str, torch.Tensor]]:
    """Numbers that autograd keeps when the forward pass is done, and the gradients."""
    kept: list[int] = []
    when_done: list[int] = []

    def loss(index: int, outputs: TokenOutputs) -> torch.Tensor:
        when_done.append(sum(kept))
        return add_up(index, outputs)

    policy.zero_gradients()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        policy.forward_backward([packed], loss)
    weights: Any = policy._trained_weights()
    return when_done[0], {name: weight.main_grad.clone() for name, weight in weights}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("explicit_max_length", [0, 12, 256])
@pytest.mark.parametrize("pair_cost", [0.0, float("inf")])
def test_logprobs_and_gradients_equal_plain_transformers(
    family: str,
    explicit_max_length: int,
    pair_cost: float,
    make_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the fused attention, the explicit one, and both in one batch; prompts where they stand,
    and copied."""
    from services.trainer.megatron.attention import attention, sequences

    monkeypatch.setattr(attention, "PAIR_COST_CPU", pair_cost)
    monkeypatch.setattr(sequences, "EXPLICIT_LENGTH", explicit_max_length)
    config = make_config(family)
    policy = make_policy(config)
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    packed = whole_batch()
    factors = torch.randn(len(packed.targets_M), generator=torch.Generator().manual_seed(0))
    ours = logprobs_of(policy, packed)
    plain = plain_logprobs(model, packed, 0.7)
    torch.testing.assert_close(ours, plain, rtol=0, atol=4e-6)
    assert (ours - plain_logprobs(model, packed, 1.0)).abs().max() > 0.1
    policy.zero_gradients()
    policy.forward_backward([packed], lambda _, outputs: (outputs.logprobs_M * factors).sum())
    (plain * factors).sum().backward()
    gradients = gradients_of(policy)
    named: Any = model.named_parameters()
    wanted = unfused({name: parameter.grad for name, parameter in named})
    assert gradients.keys() == wanted.keys()
    for name, gradient in wanted.items():
        atol = max(1e-5, 4e-6 * gradient.abs().max().item())
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=atol, msg=name)


def test_on_a_processor_batches_of_other_lengths_are_of_few_shapes(make_config: MakeConfig) -> None:
    policy = make_policy(make_config("llama", model={"dtype": "bfloat16"}))
    (stage,) = policy._stages
    lengths: list[int] = []
    stage.decoder.register_forward_hook(lambda *call: lengths.append(len(call[2])))
    for length in (3, 30, 70):
        group = scored_group([3], [completion([5] * length)] * 2, [0.0, 1.0])
        logprobs_of(policy, packed_of([group]))
    assert lengths == [64, 64, 192]


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_recomputed_activations_give_the_same_gradient_and_are_not_kept(
    family: str, make_config: MakeConfig
) -> None:
    packed = whole_batch()

    kept, gradients = train_once(make_policy(make_config(family)), packed)
    shares = []
    for choice in (True, "selective"):
        policy = make_policy(make_config(family, trainer={"recompute": choice}))
        kept_less, again = train_once(policy, packed)
        assert all(torch.equal(again[name], gradients[name]) for name in gradients)
        shares.append(kept_less / kept)
    assert shares[0] < 0.5 < shares[1] < 0.9


@pytest.mark.parametrize("family", FAMILIES)
def test_export_gives_back_what_was_loaded(
    family: str, make_config: MakeConfig, model_folders: dict[str, Path]
) -> None:
    loaded = load_tensors(model_folders[family], tied=family in TIED)
    assert same(dict(make_policy(make_config(family)).export()), loaded)


def test_weight_decay_spares_norms_and_biases(make_config: MakeConfig) -> None:
    policy = make_policy(make_config("qwen2", trainer={"weight_decay": 0.3}))
    groups = policy._optimizer.param_groups
    decay = {p.ndim: group["weight_decay"] for group in groups for p in group["params"]}
    assert decay == {1: 0.0, 2: 0.3}


@pytest.mark.parametrize("offload", [False, True])
def test_the_reference_stays_where_the_policy_began(make_config: MakeConfig, offload: bool) -> None:
    algorithm = {"kl": {"coefficient": 0.1, "offload": offload}}
    policy = make_policy(make_config("qwen2", algorithm=algorithm))
    packed = whole_batch()
    [before] = policy.forward_reference([packed])
    assert torch.equal(before, logprobs_of(policy, packed))
    policy.zero_gradients()
    policy.forward_backward([packed], add_up)
    policy.sum_gradients()
    policy.update(1e-2)
    assert torch.equal(policy.forward_reference([packed])[0], before)
    assert (logprobs_of(policy, packed) - before).abs().max() > 1e-3
    moves = {f"trainer/part/reference_{move}/seconds" for move in ("onload", "offload")}
    assert policy.take_metrics().keys() == (moves if offload else set())


def test_an_fp32_head_changes_what_a_bfloat16_model_answers(make_config: MakeConfig) -> None:
    packed, bf16 = whole_batch(), {"dtype": "bfloat16"}
    plain, fp32 = (
        make_policy(make_config("llama", model=bf16, trainer={"fp32_head": one}))
        for one in (False, True)
    )
    outputs = [policy.forward([packed], entropy=True)[0] for policy in (plain, fp32)]
    difference = (outputs[0].logprobs_M - outputs[1].logprobs_M).abs().max()
    assert 0 < difference < 0.05
    assert all(one.entropies_M is not None and one.entropies_M.min() > 0 for one in outputs)


def train(policy: MegatronPolicy, updates: int = 2) -> None:
    packed = whole_batch()
    for _ in range(updates):
        policy.zero_gradients()
        policy.forward_backward([packed], add_up)
        policy.sum_gradients()
        policy.update(1e-2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_off_loading_changes_no_bit_and_leaves_nothing_on_the_device(
    dtype: str, make_config: MakeConfig
) -> None:
    kept, away = (
        make_policy(make_config("qwen2", model={"dtype": dtype}, trainer={"offload": names}))
        for names in ([], ["optimizer", "gradients"])
    )
    for policy in (kept, away):
        train(policy)
    state = away.state()
    assert same(state, kept.state())
    assert same(dict(away.export()), dict(kept.export()))
    [stage] = away._data_parallel
    buffers: Any = stage.buffers
    tensors = [*away._optimizer_tensors(), *(buffer.grad_data for buffer in buffers)]
    assert len(tensors) > 2 * len(list(away._trained_weights()))
    assert {tensor.untyped_storage().nbytes() for tensor in tensors} == {0}
    again = make_policy(
        make_config("qwen2", model={"dtype": dtype}, trainer={"offload": ["optimizer"]})
    )
    again.load_state({name: tensor.clone() for name, tensor in state.items()}, num_updates=2)
    for policy in (kept, again):
        train(policy)
    assert same(again.state(), kept.state())


def storages_of(policy: MegatronPolicy) -> set[int]:
    """Bytes of all that is on the device, each size once."""
    parallel: list[Any] = policy._data_parallel
    tensors = [p for stage in policy._stages for p in (*stage.parameters(), *stage.buffers())]
    tensors += policy._optimizer_tensors()
    tensors += [buffer.grad_data for one in parallel for buffer in one.buffers]
    return {tensor.untyped_storage().nbytes() for tensor in tensors}


@pytest.mark.parametrize(
    ("optimizer", "is_split"), [("adamw", False), ("adamw", True), ("adamw_bf16", False)]
)
@pytest.mark.parametrize("offload", [(), ("optimizer",)])
def test_all_that_is_put_away_between_phases_comes_back_bit_for_bit(
    optimizer: str, is_split: bool, offload: tuple[str, ...], make_config: MakeConfig
) -> None:
    trainer = {"offload": offload, "optimizer": optimizer}
    config = make_config("qwen2", model={"dtype": "bfloat16"}, trainer=trainer)
    config = split(config) if is_split else config
    stays, leaves = make_policy(config), make_policy(config)
    leaves.put_away()
    for _ in range(2):
        leaves.bring_back()
        for policy in (stays, leaves):
            train(policy)
        assert same(dict(leaves.export()), dict(stays.export()))
        leaves.put_away()
        assert storages_of(leaves) == {0}
        assert same(leaves.state(), stays.state())


def test_parameters_that_are_their_own_main_weights_are_saved_while_they_are_away(
    make_config: MakeConfig,
) -> None:
    for config in (make_config("qwen2"), split(make_config("qwen2"))):  # in float32
        stays, leaves = make_policy(config), make_policy(config)
        for policy in (stays, leaves):
            train(policy)
        leaves.put_away()
        assert storages_of(leaves) == {0}
        assert same(leaves.state(), stays.state())


def split(config: RunConfig) -> RunConfig:
    """With the distributed optimizer, which the configuration refuses to a rank alone."""
    trainer = config.trainer.model_copy(update={"distributed_optimizer": True})
    return config.model_copy(update={"trainer": trainer})


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("offload", [(), ("optimizer", "gradients")])
def test_the_distributed_optimizer_updates_parts_as_the_other_does_the_whole(
    dtype: str, offload: tuple[str, ...], make_config: MakeConfig
) -> None:
    config = make_config("qwen2", model={"dtype": dtype}, trainer={"offload": offload})
    whole, parts = make_policy(config), make_policy(split(config))
    start = {name: tensor.clone() for name, tensor in parts.state().items()}
    assert start.keys() == {f"{name}@0" for name in whole.state()}
    for name, tensor in whole.state().items():  # in the precision of the folder
        assert torch.equal(start[f"{name}@0"], tensor.flatten()), name
    for policy in (whole, parts):
        train(policy, updates=1)
    state = parts.state()
    for name, tensor in whole.state().items():
        torch.testing.assert_close(state[f"{name}@0"], tensor.flatten(), rtol=1e-5, atol=1e-7)
    again = make_policy(split(config))
    again.load_state({name: tensor.clone() for name, tensor in state.items()}, num_updates=1)
    assert same(dict(again.export()), dict(parts.export()))
    for policy in (parts, again):
        train(policy)
    assert same(again.state(), parts.state())
