"""What a plugin answered, read for the checks: everything that breaks the contract is a Failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from services.reward.outcome import Fault
from services.reward.plugins.contract import NotScored, Problem, ScoreAnswer, Scored
from services.reward.plugins.protocols import max_bytes, read_scores

Model = TypeVar("Model", bound=BaseModel)


class Failed(Exception):
    """The plugin does not keep the contract: how, and the remedy."""


class Skipped(Exception):
    """The check cannot tell: why, and what would let it."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes

    def read(self, model: type[Model], status: int = 200) -> Model:
        if self.status != status:
            raise Failed(f"status {self.status} instead of {status}: {self.excerpt()}")
        try:
            return model.model_validate_json(self.body, strict=True)
        except ValidationError as error:
            fault = error.errors()[0]
            place = ".".join(map(str, fault["loc"])) or "body"
            raise Failed(
                f"status {status}, but not a {model.__name__}: {place}: {fault['msg']}"
            ) from None

    def excerpt(self) -> str:
        return ascii(self.body[:120].decode("utf-8", "replace"))


def results_of(reply: Reply, num_samples: int) -> list[Scored | NotScored]:
    results = reply.read(ScoreAnswer).results
    if len(results) != num_samples:
        raise Failed(f"{len(results)} results for {num_samples} samples; answer one a sample")
    if len(reply.body) > (most := max_bytes(num_samples)):
        raise Failed(f"the answer has {len(reply.body):,} bytes; a run reads {most:,} of it")
    for index, outcome in enumerate(read_scores(reply.body, num_samples)):
        if isinstance(outcome, Fault) and isinstance(results[index], Scored):
            raise Failed(f"sample {index}: {outcome.reason}, so a run would not take it")
    return results


def expect_problem(reply: Reply, status: int) -> str:
    """The text of a Problem under this status."""
    return reply.read(Problem, status).error


def marks_of(results: Sequence[Scored | NotScored]) -> list[float | None]:
    """What is compared: the scores; None where there is none."""
    return [result.score if isinstance(result, Scored) else None for result in results]
