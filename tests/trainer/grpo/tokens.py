"""Micro-batches of tokens for the tests of losses and of the correction."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from hypothesis import strategies as st

from services.trainer.grpo.kinds import Tokens


def make_tokens(
    old: Sequence[float],
    advantages: Sequence[float],
    completions: Sequence[int] | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tokens:
    """All of one completion where nothing else is said."""
    owners = [0] * len(old) if completions is None else list(completions)
    return Tokens(
        torch.tensor(old, dtype=dtype),
        torch.tensor(advantages, dtype=dtype),
        torch.tensor(owners, dtype=torch.int64),
        max(owners, default=-1) + 1,
        seed,
    )


def leaf(logprobs: Sequence[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(logprobs, dtype=dtype, requires_grad=True)


def gradient(value: torch.Tensor, to: torch.Tensor) -> list[float]:
    (answer,) = torch.autograd.grad(value, to)
    return answer.tolist()


@st.composite
def random_tokens(draw: st.DrawFn) -> tuple[list[float], Tokens]:
    """Log-probabilities, and completions of 1 to 5 tokens, some far from the old policy."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    random = Random(draw(st.integers(0, 1 << 32)))
    completions = [place for place, length in enumerate(lengths) for _ in range(length)]
    old = [-random.expovariate(1.0) for _ in completions]
    spread = random.choice([1e-4, 0.1, 1.0])
    current = [value + random.gauss(0, spread) for value in old]
    of_completions = [random.gauss(0, 1) for _ in lengths]
    advantages = [of_completions[place] for place in completions]
    return current, make_tokens(old, advantages, completions, seed=random.randrange(1000))
