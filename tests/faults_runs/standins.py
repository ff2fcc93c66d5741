"""A policy whose weights are a function of the batches that it was given, in their order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

from services.trainer.meeting import Meeting
from services.trainer.step.learner import StepResult
from tests.faults.policy import StandInPolicy
from trimaran.config import RunConfig
from trimaran.types import ScoredGroup, TrainingBatch
from trimaran.wire.messages import serialize_scored_group

MODEL = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
"""0.1 MB in bf16."""


class LearningPolicy(StandInPolicy):
    """Each update moves the weights by a pattern that the whole batch decides.

    So another batch, another order or a step that was trained twice ends at another root.
    """

    def __init__(self, config: RunConfig, meeting: Meeting, rank: int) -> None:
        super().__init__(config, meeting, rank)
        self._num_updates = 0

    def learn(self, batch: TrainingBatch) -> StepResult:
        move(self._weights.tensors, batch.groups)
        self._num_updates += 1
        return StepResult({"trainer/loss": 1.0 / batch.step})

    @property
    def num_updates(self) -> int:
        return self._num_updates

    def state(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self._weights.tensors.items()}

    def load_state(self, state: dict[str, torch.Tensor], num_updates: int) -> None:
        for name, tensor in state.items():
            self._weights.tensors[name].copy_(tensor)
        self._num_updates = num_updates


def move(tensors: dict[str, torch.Tensor], groups: Iterable[ScoredGroup]) -> None:
    """In place. Not commutative: each element is halved before it is moved."""
    digest = hashlib.sha256(b"".join(serialize_scored_group(group) for group in groups)).digest()
    dice = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    for _, tensor in sorted(tensors.items()):
        noise = torch.randn(tensor.shape, generator=dice) / 8
        tensor.copy_(tensor.float() / 2 + noise)
