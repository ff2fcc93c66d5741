"""The completions of one request, made in lockstep, each with random numbers of its own.

Axes: B completions of the batch, L positions (prompt, start, new tokens),
T tokens of one completion, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

import torch

from services.rollout.engine import Chunk, Ended, Event, GenerationRequest
from services.rollout.turns.stop_texts import StopTexts
from trimaran.types import VersionId


@dataclass(slots=True)
class _Row:
    index: int
    positions_L: list[int]
    """Grows in step with the other rows, also after the completion has ended."""
    num_given: int
    draws_T: torch.Tensor
    new: list[tuple[int, float, VersionId]] = field(default_factory=list)
    """Tokens, log-probabilities and versions that are not passed on yet."""
    num_made: int = 0
    finish_reason: str = ""

    def draw(self) -> torch.Tensor:
        """The next token's; an ended completion has no use for one any more."""
        return self.draws_T[min(self.num_given + self.num_made, len(self.draws_T) - 1)]


class DecodeBatch:
    def __init__(
        self, request: GenerationRequest, stop_token_ids: frozenset[int], stops: StopTexts
    ) -> None:
        self.cancelled = False
        self._stops = stops
        self._num_prompt = len(request.prompt_token_ids)
        self._sampling = request.sampling
        self._stop_token_ids = stop_token_ids
        self._rows_B = [
            _Row(
                index,
                [*request.prompt_token_ids, *start],
                len(start),
                draws(request.sampling.seed, request.number, index, request.sampling.max_tokens),
            )
            for index, start in request.starts.items()
        ]
        self._ended: set[int] = set()

    @property
    def num_open(self) -> int:
        return sum(not row.finish_reason for row in self._rows_B)

    def tokens(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and attention mask, [B, L] int64, padded on the left."""
        rows_B = [row.positions_L for row in self._rows_B]
        length = max(map(len, rows_B))
        tokens_BL = [[0] * (length - len(row)) + row for row in rows_B]
        mask_BL = [[0] * (length - len(row)) + [1] * len(row) for row in rows_B]
        return torch.tensor(tokens_BL), torch.tensor(mask_BL)

    def take(self, logits_BV: torch.Tensor, version: VersionId) -> bool:
        """One token more for every row, from float32 logits. True when a completion ended."""
        temperature = self._sampling.temperature
        logprobs_BV = (logits_BV / (temperature or 1.0)).log_softmax(-1)
        if temperature:
            draws_B = torch.stack([row.draw() for row in self._rows_B])
            tokens_B = inverse_cdf(likeliest(logprobs_BV, self._sampling.top_p), draws_B)
        else:
            tokens_B = logprobs_BV.argmax(-1)
        made_B = logprobs_BV.gather(-1, tokens_B[:, None])[:, 0]
        ended = False
        for row, token, logprob in zip(
            self._rows_B, tokens_B.tolist(), made_B.tolist(), strict=True
        ):
            row.positions_L.append(token)
            if not row.finish_reason:
                row.new.append((token, logprob, version))
                row.num_made += 1
                row.finish_reason = self._finish_reason(row, token)
                ended |= bool(row.finish_reason)
        return ended

    def _finish_reason(self, row: _Row, token: int) -> str:
        if token in self._stop_token_ids:
            return "stop"
        completion = row.positions_L[self._num_prompt :]
        if self._stops.find_end(completion, len(completion) - 1) is not None:
            return "stop"
        return "length" if row.num_given + row.num_made >= self._sampling.max_tokens else ""

    def events(self) -> Iterator[Event]:
        """Everything since the last call, cut where the version changed."""
        for row in self._rows_B:
            start = row.num_given + row.num_made - len(row.new)
            for version, group in groupby(row.new, key=lambda item: item[2]):
                tokens_T, logprobs_T, _ = zip(*group, strict=True)
                yield Chunk(row.index, start, version, tokens_T, logprobs_T)
                start += len(tokens_T)
            row.new.clear()
            if row.finish_reason and row.index not in self._ended:
                self._ended.add(row.index)
                yield Ended(row.index, row.finish_reason)


def draws(seed: int, number: int, index: int, count: int) -> torch.Tensor:
    """The uniform numbers in [0, 1) of one completion, one a token; float64 [count]."""
    digest = hashlib.sha256(f"{seed}/{number}/{index}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.rand(count, generator=generator, dtype=torch.float64)


def likeliest(logprobs_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Without the tokens of a row that are less likely than its smallest set, of the likeliest, that has the
    probability `top_p` together: nucleus sampling, Holtzman et al. 2020 (arXiv:1904.09751).

    Example: of probabilities (0.2, 0.5, 0.3) and top_p 0.7 the first is left out.
    """
    if top_p >= 1:
        return logprobs_BV
    sorted_BV, order_BV = logprobs_BV.sort(-1, descending=True)
    probabilities_BV = sorted_BV.double().exp()
    is_out_BV = probabilities_BV.cumsum(-1) - probabilities_BV >= top_p
    return logprobs_BV.masked_fill(is_out_BV.scatter(-1, order_BV, is_out_BV), -torch.inf)


def inverse_cdf(logprobs_BV: torch.Tensor, draws_B: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative probability exceeds its row's draw; int64 [B].

    Example: probabilities (0.2, 0.5, 0.3) and a draw of 0.3 give token 1.
    """
    cumulative_BV = logprobs_BV.double().exp().cumsum(-1)
    targets_B1 = draws_B[:, None] * cumulative_BV[:, -1:]
    tokens_B = torch.searchsorted(cumulative_BV, targets_B1, right=True)[:, 0]
    return tokens_B.clamp_(max=logprobs_BV.shape[1] - 1)
