from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.trainer.grpo.aggregations import Fixed, SequenceMean, SequenceSum, TokenMean
from services.trainer.grpo.kinds import Aggregation

ALL: tuple[Aggregation, ...] = (TokenMean(), SequenceMean(), SequenceSum(), Fixed(tokens=8))


def weights(aggregation: Aggregation, lengths: list[int]) -> list[float]:
    weights_B = aggregation(torch.tensor(lengths, dtype=torch.int64))
    assert weights_B.dtype == torch.float64
    return weights_B.tolist()


def test_the_fixed_number_must_be_given() -> None:
    with pytest.raises(ValidationError, match="tokens"):
        Fixed.model_validate({})
    with pytest.raises(ValidationError, match="tokens"):
        Fixed(tokens=0)


@pytest.mark.parametrize("aggregation", ALL)
@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_nothing_to_train_weighs_nothing(aggregation: Aggregation, lengths: list[int]) -> None:
    assert weights(aggregation, lengths) == [0.0] * len(lengths)


@given(st.lists(st.lists(st.floats(-9, 9), max_size=5), min_size=1, max_size=6))
def test_the_weighted_sum_is_the_mean_of_the_formula(losses: list[list[float]]) -> None:
    lengths = [len(completion) for completion in losses]
    trained = [completion for completion in losses if completion]

    def weighted(aggregation: Aggregation) -> float:
        pairs = zip(weights(aggregation, lengths), losses, strict=True)
        return sum(weight * loss for weight, completion in pairs for loss in completion)

    flat = [loss for completion in losses for loss in completion]
    num = max(len(trained), 1)
    assert weighted(TokenMean()) == pytest.approx(sum(flat) / max(len(flat), 1))
    means = [sum(completion) / len(completion) for completion in trained]
    assert weighted(SequenceMean()) == pytest.approx(sum(means) / num)
    assert weighted(SequenceSum()) == pytest.approx(sum(map(sum, trained)) / num)
    assert weighted(Fixed(tokens=8)) == pytest.approx(sum(map(sum, trained)) / num / 8)
