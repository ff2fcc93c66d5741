"""Batches with hardly anything in them: each is one step that answers, and the next one trains."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.batches import completion, proofs_for, random_batch, scored_group
from tests.trainer.processes import ANSWER_SECONDS, free_addresses, running_ranks
from tests.trainer.test_rank import started
from trimaran.config import RunConfig
from trimaran.types import Completion, TrainingBatch

EMPTY: list[int] = []


def batch(completions: list[Completion], rewards: list[float | None]) -> TrainingBatch:
    groups = (scored_group([5, 6, 7], completions, rewards, number) for number in range(4))
    return TrainingBatch(1, tuple(groups))


def one_token() -> TrainingBatch:
    return batch([completion([9]), completion([8])], [0.0, 1.0])


def one_prompt_token() -> TrainingBatch:
    answers = [completion([9]), completion([8])]
    groups = (scored_group([5], answers, [0.0, 1.0], number) for number in range(4))
    return TrainingBatch(1, tuple(groups))


def empty() -> TrainingBatch:
    """The engine may end an answer before its first token."""
    return batch([completion(EMPTY), completion(EMPTY)], [0.0, 1.0])


def partly_empty() -> TrainingBatch:
    return batch([completion(EMPTY), completion([9, 8])], [0.0, 1.0])


def unscored() -> TrainingBatch:
    return batch([completion([9, 8]), completion([7])], [None, None])


def equal() -> TrainingBatch:
    return batch([completion([9, 8]), completion([7])], [0.5, 0.5])


ODD = [one_token, one_prompt_token, empty, partly_empty, unscored, equal]
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
TRAINS = {"one_token", "one_prompt_token", "partly_empty"}


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.__name__)
@pytest.mark.parametrize("algorithm", SECTIONS)
async def test_a_batch_with_hardly_anything_in_it_is_a_step(
    make_config: Callable[..., RunConfig],
    tmp_path: Path,
    odd: Callable[[], TrainingBatch],
    algorithm: str,
) -> None:
    config = make_config(algorithm=SECTIONS[algorithm])

    async with started(config, tmp_path) as rank:
        start = rank.version.root
        answer = await rank.train(odd())
        assert not answer.nonfinite
        json.dumps(answer.metrics, allow_nan=False)
        assert answer.version.root != start or odd.__name__ not in TRAINS
        after = await rank.train(random_batch(2))
        assert after.version.root != answer.version.root and not after.nonfinite


def lone(step: int) -> TrainingBatch:
    """One completion trains: all ranks but one have nothing to compute."""
    group = scored_group([5, 6, 7], [completion(EMPTY), completion([9, 8, 4])], [0.0, 1.0])
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
def test_ranks_without_anything_to_compute_take_part(
    family: str, sizes: dict[str, int], make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    async def train(folder: Path, trainer: dict[str, int]) -> list[list[float]]:
        sections: dict[str, dict[str, Any]] = {"run": {"groups_per_step": 1}, "trainer": trainer}
        count = make_config(family, **sections).num_trainer_ranks
        config = make_config(family, **sections, endpoints={"trainer": free_addresses(count)})
        found: list[list[float]] = []
        async with running_ranks(config, folder) as client:
            start, _ = await client.get_policy_version(ANSWER_SECONDS)
            for odd in (lone(1), silent(2), lone(3)):
                proofs = proofs_for(odd, start.root)
                answer = await client.train_batch(odd, ANSWER_SECONDS, proofs=proofs)
                assert not answer.nonfinite
                found.append([answer.metrics[f"trainer/{key}"] for key in ("loss", "grad_norm")])
        return found

    alone = asyncio.run(train(tmp_path / "alone", {}))
    together = asyncio.run(train(tmp_path / "together", sizes))
    assert together == [pytest.approx(row, rel=2e-4, abs=2e-6) for row in alone]
    assert alone[0][1] > 1e-3
