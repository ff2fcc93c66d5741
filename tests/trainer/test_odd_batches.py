"""Batches with hardly anything in them: each is one step that answers, and the next one trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.batches import completion, random_batch, scored_group
from tests.trainer.conftest import MakeConfig
from tests.trainer.processes import running_ranks
from tests.trainer.test_rank import started
from trimaran.types import TrainingBatch

ODD: dict[str, tuple[list[int], list[list[int]], list[float | None]]] = {
    "one token": ([5, 6, 7], [[9], [8]], [0.0, 1.0]),
    "one prompt token": ([5], [[9], [8]], [0.0, 1.0]),
    "empty": ([5, 6, 7], [[], []], [0.0, 1.0]),
    "partly empty": ([5, 6, 7], [[], [9, 8]], [0.0, 1.0]),
    "unscored": ([5, 6, 7], [[9, 8], [7]], [None, None]),
    "equal": ([5, 6, 7], [[9, 8], [7]], [0.5, 0.5]),
}
"""Prompt, completions and rewards. An engine may end an answer before its first token."""
SECTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all passes": {
        "updates_per_batch": 2,
        "epochs": 2,
        "kl": {"coefficient": 0.1, "adaptive": {"target": 0.1}},
        "entropy": {"coefficient": 0.01},
    },
    "kl in the reward": {"kl": {"coefficient": 0.1, "place": "reward"}},
}
TRAINS = {"one token", "one prompt token", "partly empty"}


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("algorithm", SECTIONS)
async def test_a_batch_with_hardly_anything_in_it_is_a_step(
    make_config: MakeConfig, tmp_path: Path, odd: str, algorithm: str
) -> None:
    prompt, ids, rewards = ODD[odd]
    answers = [completion(one) for one in ids]
    groups = (scored_group(prompt, answers, rewards, number) for number in range(4))
    config = make_config(algorithm=SECTIONS[algorithm])
    async with started(config, tmp_path) as rank:
        start = rank.version.root
        answer = await rank.train(TrainingBatch(1, tuple(groups)))
        assert not answer.nonfinite
        json.dumps(answer.metrics, allow_nan=False)
        assert answer.version.root != start or odd not in TRAINS
        after = await rank.train(random_batch(2))
        assert after.version.root != answer.version.root and not after.nonfinite


def lone(step: int) -> TrainingBatch:
    """One completion trains: all ranks but one have nothing to compute."""
    group = scored_group([5, 6, 7], [completion([]), completion([9, 8, 4])], [0.0, 1.0])
    return TrainingBatch(step, (group,))


def silent(step: int) -> TrainingBatch:
    """No rank has anything to compute."""
    return TrainingBatch(
        step, (scored_group([5, 6], [completion([9]), completion([7])], [1.0, 1.0]),)
    )


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen3_moe", {"data_parallel": 2, "expert_parallel": 2}),
        ("llama", {"data_parallel": 2}),
        ("qwen2", {"pipeline_parallel": 2}),
        ("llama", {"context_parallel": 2}),
    ],
)
async def test_ranks_without_anything_to_compute_take_part(
    family: str, sizes: dict[str, int], make_config: MakeConfig, tmp_path: Path
) -> None:
    async def train(name: str, trainer: dict[str, int]) -> list[list[float]]:
        config = make_config(family, run={"groups_per_step": 1}, trainer=trainer)
        async with running_ranks(config, tmp_path / name) as client:
            answers = [await client.train(odd) for odd in (lone(1), silent(2), lone(3))]
        assert not any(answer.nonfinite for answer in answers)
        keys = ("trainer/loss", "trainer/grad_norm")
        return [[answer.metrics[key] for key in keys] for answer in answers]

    alone, together = await train("alone", {}), await train("together", sizes)
    assert together == [pytest.approx(row, rel=2e-4, abs=2e-6) for row in alone]
    assert alone[0][1] > 1e-3
