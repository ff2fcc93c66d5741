"""The experts that the engine chose, for the packed tokens of a micro-batch.

Axes: N packed tokens, X bytes of a token, L layers of the whole model, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from trimaran.errors import InputError

UNKNOWN = -1
"""Instead of an expert's number."""


@dataclass(frozen=True, slots=True)
class ChosenExperts:
    """Example: join_experts([(b"\\2\\0" * 3, 3), (b"", 5)], device).numbers(1, 2, 4) is [8, 1, 2]"""

    data_NX: torch.Tensor
    """uint8, as in `types.Completion.experts`; anything where they are not known."""
    is_known_N: torch.Tensor
    """bool."""

    def numbers(self, layers: int, per_token: int, experts: int) -> torch.Tensor:
        """int16 [N, L, K]. Raises InputError where the bytes are those of another model."""
        wide = experts > 256
        if self.data_NX.shape[1] != layers * per_token * (2 if wide else 1):
            raise InputError(
                f"a token has {self.data_NX.shape[1]} bytes of chosen experts; a model of {layers} layers"
                f" and {per_token} of {experts} experts a token has"
                f" {layers * per_token * (2 if wide else 1)}"
            )
        numbers = self.data_NX.view(torch.int16) if wide else self.data_NX.to(torch.int16)
        numbers = numbers.view(-1, layers, per_token)
        return numbers.masked_fill(~self.is_known_N[:, None, None], UNKNOWN)

    def padded(self, count: int) -> ChosenExperts:
        """With so many more tokens, of which they are not known."""
        data = F.pad(self.data_NX, (0, 0, 0, count))
        return ChosenExperts(data, F.pad(self.is_known_N, (0, count)))


def join_experts(parts: Sequence[tuple[bytes, int]], device: torch.device) -> ChosenExperts | None:
    """Of prompts and completions: the bytes, or none where they are not known, and how many packed
    tokens. None where they are known of no token. Raises InputError where the bytes are not as many a
    token everywhere."""
    widths = {len(data) / count for data, count in parts if data and count}
    if not widths:
        return None
    width = int(max(widths))
    if widths != {width}:
        raise InputError(
            f"chosen experts of {sorted(widths)} bytes a token; it must be one whole number"
        )
    data_NX = np.concatenate(
        [
            np.frombuffer(data, np.uint8).reshape(-1, width)
            if data
            else np.zeros((count, width), np.uint8)
            for data, count in parts
        ]
    )
    is_known_N = np.repeat([bool(data) for data, _ in parts], [count for _, count in parts])
    return ChosenExperts(
        torch.from_numpy(data_NX).to(device), torch.from_numpy(is_known_N).to(device)
    )
