from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from services.trainer.batch import pack, prepare_mini_batch
from services.trainer.packing import GroupLengths
from tests.trainer.batches import completion, scored_group
from trimaran.config import AlgorithmSection
from trimaran.errors import InputError

CPU = torch.device("cpu")


def test_a_group_packs_its_prompt_once_and_each_completion_without_its_last_token() -> None:
    answers = [completion([7, 8, 9], [-0.1, -0.2, -0.3]), completion([6], [-0.4])]
    group = scored_group([4, 5], answers, [1.0, 0.0])
    (samples,) = prepare_mini_batch([group], AlgorithmSection(normalize_std=False))
    packed = pack([samples, samples], CPU)
    assert packed.token_ids_N.tolist() == [4, 5, 7, 8] * 2
    assert packed.groups == (GroupLengths(2, (2, 0)),) * 2
    assert packed.sources_M.tolist() == [1, 2, 3, 1, 5, 6, 7, 5]
    assert packed.targets_M.tolist() == [7, 8, 9, 6] * 2
    logprobs = torch.tensor([-0.1, -0.2, -0.3, -0.4] * 2)
    assert torch.equal(packed.rollout_logprobs_M, logprobs)
    assert packed.advantages_M.tolist() == [0.5, 0.5, 0.5, -0.5] * 2
    assert packed.weights_M.tolist() == [0.25] * 8


def test_an_empty_completion_counts_in_the_group_and_trains_nothing() -> None:
    group = scored_group([4, 5], [completion([7, 8]), completion([])], [1.0, 0.0])
    (samples,) = prepare_mini_batch([group], AlgorithmSection(normalize_std=False))
    packed = pack([samples], CPU)
    assert packed.token_ids_N.tolist() == [4, 5, 7]
    assert packed.targets_M.tolist() == [7, 8]
    assert packed.advantages_M.tolist() == [0.5, 0.5]


def test_an_aggregation_that_gives_too_few_weights_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.trainer.batch.AGGREGATIONS", Few())
    group = scored_group([4], [completion([7]), completion([8])], [1.0, 0.0])
    with pytest.raises(InputError, match="gives 1 weights for 2 completions"):
        prepare_mini_batch([group], AlgorithmSection())


class Few:
    def load(self, name: str) -> Callable[[Sequence[int]], list[float]]:
        return lambda num_tokens_B: [1.0] * (len(num_tokens_B) - 1)


def test_a_faulted_completion_is_left_out_of_the_denominator() -> None:
    answers = [completion([7]), completion([8]), completion([9, 9, 9])]
    group = scored_group([4], answers, [1.0, 0.0, None])
    (samples,) = prepare_mini_batch([group], AlgorithmSection())
    assert [sample.completion.token_ids_T for sample in samples] == [(7,), (8,)]
    assert [sample.weight for sample in samples] == [0.5, 0.5]


def test_a_group_without_signal_keeps_its_place_in_the_denominator() -> None:
    mixed = scored_group([4], [completion([7]), completion([8])], [1.0, 0.0])
    equal = scored_group([4], [completion([7, 7]), completion([8])], [1.0, 1.0])
    samples = prepare_mini_batch([mixed, equal], AlgorithmSection())
    assert [len(group) for group in samples] == [2, 0]
    assert samples[0][0].weight == 1 / 5
    samples = prepare_mini_batch([mixed, equal], AlgorithmSection(kl_coefficient=0.1))
    assert [len(group) for group in samples] == [2, 2]
    samples = prepare_mini_batch([mixed, equal], AlgorithmSection(aggregation="sequence_mean"))
    assert samples[0][0].weight == 1 / 4
