"""Batches with hardly anything in them: each is one step that answers, and the next one trains."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.batches import completion, random_batch, scored_group
from tests.trainer.test_rank import started
from trimaran.config import RunConfig
from trimaran.types import Completion, TrainingBatch

pytestmark = pytest.mark.usefixtures("single_rank")
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


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.__name__)
@pytest.mark.parametrize("algorithm", SECTIONS)
def test_a_batch_with_hardly_anything_in_it_is_a_step(
    make_config: Callable[..., RunConfig],
    tmp_path: Path,
    odd: Callable[[], TrainingBatch],
    algorithm: str,
) -> None:
    config = make_config(algorithm=SECTIONS[algorithm])

    async def scenario() -> None:
        async with started(config, tmp_path) as rank:
            start = rank.version.root
            answer = await rank.train(odd())
            assert not answer.nonfinite
            json.dumps(answer.metrics, allow_nan=False)
            assert answer.version.root != start or odd.__name__ not in TRAINS
            after = await rank.train(random_batch(2))
            assert after.version.root != answer.version.root and not after.nonfinite

    asyncio.run(scenario())
