"""A trainer rank on megatron-core: steps with numbers that are not finite, on its own and among others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.trainer.rank import TrainerRank
from tests.trainer.batches import random_batch
from tests.trainer.broken import bad_batch, exploding_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.models import same
from tests.trainer.processes import ANSWER_SECONDS, running_ranks
from tests.trainer.test_rank import save, started
from trimaran.errors import InternalError, UnavailableError
from trimaran.types import TrainingBatch, VersionId

pytestmark = pytest.mark.e2e

PLAIN = {"advantage": {"normalize_std": False}}
WARM_UP = {"warmup_steps": 4}
NAMED = {
    bad_batch: "group 1: completion 0: log-probability nan",
    exploding_batch: "groups 0 to 3: their loss or gradient is not finite",
}
"""What is named: a group by what arrives, all of the update by what it computes."""


def state_of(rank: TrainerRank) -> dict[str, torch.Tensor]:
    """Weights, moments and the optimizer's counts of updates."""
    state = {name: tensor.clone() for name, tensor in rank._policy.state().items()}
    return state | counts_of(rank._policy._adams[0])  # type: ignore[attr-defined]


def counts_of(adam: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """torch's AdamW counts for each parameter; the others that megatron-core may pick, in the groups."""
    if isinstance(adam, torch.optim.AdamW):
        counts = [entry["step"].clone() for entry in adam.state.values() if entry]
    else:
        counts = [torch.tensor(int(group.get("step", 0))) for group in adam.param_groups]
    return {f"step.{number}": count for number, count in enumerate(counts)}


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("make_bad", [bad_batch, exploding_batch])
@pytest.mark.parametrize("before", [0, 1])
async def test_a_step_that_is_not_finite_counts_and_changes_nothing(
    make_config: MakeConfig,
    tmp_path: Path,
    dtype: str,
    make_bad: Callable[[int], TrainingBatch],
    before: int,
) -> None:
    """As the first step, or between two others; it is answered and saved as any other."""
    config = make_config(model={"dtype": dtype}, algorithm=PLAIN, trainer=WARM_UP)
    bad = before + 1

    async with started(config, tmp_path) as rank:
        for step in range(1, bad):
            await rank.train(random_batch(step))
        root, state = rank.version.root, state_of(rank)
        answer = await rank.train(make_bad(bad))
        assert same(state_of(rank), state)
        assert (answer.version.version, answer.version.root) == (VersionId(0, bad), root)
        assert answer.nonfinite.startswith(NAMED[make_bad])
        assert answer == await rank.train(make_bad(bad))
        assert answer.metrics["trainer/learning_rate"] == pytest.approx(1e-3 * bad / 4)
        folder = await save(rank, bad)
        assert json.loads((folder / "state.json").read_text())["num_updates"] == before
        after = await rank.train(random_batch(bad + 1))
        assert after.nonfinite == ""
        assert after.metrics["trainer/learning_rate"] == pytest.approx(1e-3 * (bad + 1) / 4)
        expected = state_of(rank)
    async with started(config, tmp_path) as resumed:
        assert same(state_of(resumed), state)
        assert answer == await resumed.train(make_bad(bad))
        assert after.version.root == (await resumed.train(random_batch(bad + 1))).version.root
        assert same(state_of(resumed), expected)


@pytest.mark.usefixtures("single_rank")
async def test_weights_that_are_not_finite_are_neither_answered_nor_saved(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """The gradient is finite; a senseless learning rate takes the weights beyond the numbers."""
    config = make_config(trainer={"learning_rate": 3e38, "weight_decay": 1.0})

    async with started(config, tmp_path) as rank:
        root = rank.version.root
        folder = await save(rank, 0)
        with pytest.raises(InternalError, match="weight holds numbers that are not finite"):
            await rank.train(random_batch(1))
        assert (rank.version.version, rank.version.root) == (VersionId(0, 0), root)
        with pytest.raises(UnavailableError, match="resume the run from its checkpoint"):
            await save(rank, 0)
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.usefixtures("single_rank")
async def test_a_model_folder_with_a_number_that_is_not_finite_is_refused_at_the_start(
    make_config: MakeConfig, model_folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(model_folders["llama"], tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 5] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = make_config("llama", model={"path": str(folder)})

    with pytest.raises(InternalError, match=f"{name} holds numbers .*look at model.path"):
        async with started(config, tmp_path):
            pass


@pytest.mark.parametrize(
    ("family", "split"),
    [
        ("qwen2", {"tensor_parallel": 2}),
        ("qwen2", {"pipeline_parallel": 2}),
        ("qwen2", {"data_parallel": 2}),
        ("qwen3_moe", {"data_parallel": 2, "expert_parallel": 2}),
    ],
)
async def test_all_ranks_leave_the_same_update_out(
    make_config: MakeConfig, tmp_path: Path, family: str, split: dict[str, int]
) -> None:
    """Found by every rank in what arrives, or by the one that computes the group. The run with such
    steps between ends with the weights of the run without them."""

    config = make_config(family, algorithm=PLAIN, trainer={**split, "micro_batch_tokens": 40})

    async def train(name: str, *batches: TrainingBatch) -> list[tuple[str, str]]:
        async with running_ranks(config, tmp_path / name) as client:
            answers = [await client.train(batch) for batch in batches]
            await client.save_checkpoint(len(batches), ANSWER_SECONDS)
            return [(client.first.root, ""), *((a.version.root, a.nonfinite) for a in answers)]

    def at(step: int, batch: TrainingBatch) -> TrainingBatch:
        return TrainingBatch(step, batch.groups)

    first, last = random_batch(1), random_batch(2)
    plain = await train("plain", first, at(2, last))
    bad = at(1, bad_batch(7))
    mixed = await train("mixed", bad, at(2, first), exploding_batch(3), at(4, last))
    roots, faults = zip(*mixed, strict=True)
    start, one, two = (root for root, _ in plain)
    assert roots == (start, start, one, one, two)
    assert faults[1].startswith(NAMED[bad_batch])
    assert faults[3] == NAMED[exploding_batch]
    assert faults[2] == faults[4] == ""
