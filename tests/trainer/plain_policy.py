"""A policy on plain transformers that records what the learner asks of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from services.trainer.step.batch import PackedBatch
from services.trainer.step.outputs import TokenLoss, TokenOutputs
from services.trainer.step.updates import Update
from trimaran.types import Group


def plain_distributions(
    model: torch.nn.Module, packed: PackedBatch, temperature: float
) -> torch.Tensor:
    """Log-probabilities [M, V]: each completion with its own copy of the prompt, one sequence at a time."""
    logits = torch.cat([_group_logits(model, part) for part in _split(packed)])
    return (logits[packed.sources_M].float() / temperature).log_softmax(-1)


def plain_logprobs(model: torch.nn.Module, packed: PackedBatch, temperature: float) -> torch.Tensor:
    """Of the trained tokens [M]."""
    logprobs_MV = plain_distributions(model, packed, temperature)
    return logprobs_MV.gather(-1, packed.targets_M[:, None])[:, 0]


def _split(packed: PackedBatch) -> list[tuple[torch.Tensor, ...]]:
    """Group -> prompt, completions."""
    groups = packed.token_ids_N.split([group.num_tokens for group in packed.groups])
    return [
        ids.split([group.prompt, *group.completions])
        for ids, group in zip(groups, packed.groups, strict=True)
    ]


def _group_logits(model: torch.nn.Module, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    prompt, *completions = parts
    sequences = [torch.cat([prompt, ids])[None] for ids in completions]
    logits = [model(input_ids=ids).logits[0] for ids in sequences]
    return torch.cat([logits[0][: len(prompt)], *(one[len(prompt) :] for one in logits)])


class PlainPolicy:
    """Implements `learner.Policy` as one of several data-parallel ranks, without the others."""

    def __init__(self, model: torch.nn.Module, data_rank: int = 0, temperature: float = 0.7):
        self.model, self.data_rank = model, data_rank
        self.device, self.attention_cost = torch.device("cpu"), 0.01
        self.events: list[str] = []
        self._temperature = temperature

    def image_cost(self, group: Group) -> float:
        return 0.0

    def share_experts(self, updates: Sequence[Update]) -> list[Update]:
        return [*updates]

    @torch.no_grad()
    def forward(
        self, micro_batches: Sequence[PackedBatch], entropy: bool = False
    ) -> list[TokenOutputs]:
        self.events += ["forward"] * len(micro_batches)
        return [self._outputs(packed, entropy) for packed in micro_batches]

    @torch.no_grad()
    def forward_reference(self, micro_batches: Sequence[PackedBatch]) -> list[torch.Tensor]:
        self.events += ["reference"] * len(micro_batches)
        return [self._outputs(packed, False).logprobs_M for packed in micro_batches]

    def forward_backward(
        self, micro_batches: Sequence[PackedBatch], loss: TokenLoss, entropy: bool = False
    ) -> None:
        for index, packed in enumerate(micro_batches):
            self.events.append("backward")
            loss(index, self._outputs(packed, entropy)).backward()

    def _outputs(self, packed: PackedBatch, entropy: bool) -> TokenOutputs:
        logprobs_MV = plain_distributions(self.model, packed, self._temperature)
        chosen_M = logprobs_MV.gather(-1, packed.targets_M[:, None])[:, 0]
        entropies_M = -(logprobs_MV.exp() * logprobs_MV).sum(-1) if entropy else None
        return TokenOutputs(chosen_M, entropies_M)

    def zero_gradients(self) -> None:
        self.model.zero_grad()

    def sum_gradients(self) -> float:
        return self.gradients().norm().item()

    def update(self, learning_rate: float) -> None:
        self.events.append("update")
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter -= learning_rate * parameter.grad

    def reduce(self, sums: torch.Tensor, largest: torch.Tensor) -> None:
        self.events.append("reduce")

    def take_metrics(self) -> dict[str, float]:
        return {}

    def take_expert_loads(self) -> torch.Tensor:
        return torch.zeros(0, 0, dtype=torch.int64)

    def end_step(self) -> None:
        """Nothing is kept."""

    def any_rank(self, flags: torch.Tensor) -> torch.Tensor:
        return flags

    def gradients(self) -> torch.Tensor:
        """All of them, float32 [parameters]; 0 where none arrived."""
        return torch.cat(
            [
                torch.zeros(p.numel()) if p.grad is None else p.grad.flatten()
                for p in self.model.parameters()
            ]
        )
