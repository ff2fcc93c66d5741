"""What the output layer takes on the last stage, as services/trainer/megatron/logprobs.py computes it."""

from __future__ import annotations

from dataclasses import dataclass

from trimaran.model.memory.layer import FP32

CHUNK_ROWS = 128
"""Rows whose float32 logits exist at a time, where the logits themselves are kept."""
KEPT_BYTES = 1 << 30
"""More logits are not kept, but computed again in the backward pass."""
CHUNK_ENTRIES = 8192
"""Entries of the vocabulary whose logits exist at a time there."""
CHUNK_LOGITS = 1 << 26
"""And logits that do."""


@dataclass(frozen=True, slots=True)
class Head:
    """Example: Head(size=2, hidden=576, rows=49152, trained=0.8).logits(tokens=4096)"""

    size: int
    """Bytes of a number of the model."""
    hidden: int
    rows: int
    """Entries of the vocabulary on this rank."""
    trained: float
    """Tokens whose logits are computed, of each packed token."""
    fp32: bool = False
    """The products are in float32, though the model is not."""
    is_frozen: bool = False
    """Its weight has no gradient."""

    @property
    def fixed(self) -> int:
        """Once: the gradient of the weight, and what exists in float32 at a time."""
        gradient = 0 if self.is_frozen else self.size * self.rows * self.hidden
        if self.fp32:
            return gradient + 2 * FP32 * self._entries * self.hidden
        return gradient + 2 * FP32 * CHUNK_ROWS * self.rows

    def logits(self, tokens: int) -> int:
        """With micro-batches of so many packed tokens: hidden states that are chosen and their gradient,
        and logits, which turn into their own gradient."""
        chosen = self.trained * tokens
        part = min(chosen * self._entries, CHUNK_LOGITS)
        again = chosen * (self.size + 2 * FP32) * self.hidden + 2 * FP32 * part
        if self.fp32:
            return round(again)
        # Beyond that the most that a smaller micro-batch keeps counts, so that more tokens never fit better.
        logits = min(chosen * self.size * self.rows, KEPT_BYTES)
        kept = chosen * self.size * 2 * self.hidden + logits
        return round(kept if logits < KEPT_BYTES else max(kept, again))

    @property
    def _entries(self) -> int:
        return min(CHUNK_ENTRIES, self.rows)
