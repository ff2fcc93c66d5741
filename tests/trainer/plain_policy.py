"""A policy on plain transformers that records what the learner asks of it."""

from __future__ import annotations

import torch

from services.trainer.batch import PackedBatch


class PlainPolicy:
    """Implements `learner.Policy` as one of several data-parallel ranks, without the others."""

    def __init__(self, model: torch.nn.Module, data_rank: int = 0, temperature: float = 0.7):
        self.model, self.data_rank = model, data_rank
        self.device = torch.device("cpu")
        self.events: list[str] = []
        self._temperature = temperature

    def logprobs(self, packed: PackedBatch) -> torch.Tensor:
        self.events.append("logprobs" if torch.is_grad_enabled() else "old logprobs")
        return self._logprobs(packed)

    @torch.no_grad()
    def reference_logprobs(self, packed: PackedBatch) -> torch.Tensor:
        self.events.append("reference")
        return self._logprobs(packed)

    def _logprobs(self, packed: PackedBatch) -> torch.Tensor:
        parts = packed.token_ids_N.split(list(packed.lengths))
        logits = torch.cat([self.model(input_ids=ids[None]).logits[0] for ids in parts])
        logprobs = (logits[packed.sources_M].float() / self._temperature).log_softmax(-1)
        return logprobs.gather(-1, packed.targets_M[:, None])[:, 0]

    def zero_gradients(self) -> None:
        self.model.zero_grad()

    def update(self, learning_rate: float) -> float:
        self.events.append("update")
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter -= learning_rate * parameter.grad
        return 0.0

    def reduce(self, sums: torch.Tensor, largest: torch.Tensor) -> None:
        self.events.append("reduce")

    def gradients(self) -> torch.Tensor:
        """All of them, float32 [parameters]; 0 where none arrived."""
        return torch.cat(
            [
                torch.zeros(p.numel()) if p.grad is None else p.grad.flatten()
                for p in self.model.parameters()
            ]
        )
