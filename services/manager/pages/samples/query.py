"""Which samples a page shows, and in which order: what its address says."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field, field_validator

from services.manager.run_data.choice import Choice, Kind, Order

ROWS = 40
"""Samples of a page."""


class SamplesQuery(BaseModel):
    """Example: SamplesQuery(of="trained", step=7).words == "of=trained&step=7" """

    model_config = ConfigDict(frozen=True, extra="ignore")

    of: Literal["", "validation", "trained"] = ""
    """Empty: validations where there are any."""
    step: int | None = Field(default=None, ge=0)
    """None: the last one."""
    kind: Kind = ""
    order: Order = ""
    faulted: bool = False
    low: float | None = Field(default=None, allow_inf_nan=False)
    high: float | None = Field(default=None, allow_inf_nan=False)
    page: int = Field(default=1, ge=1, le=1_000_000)

    @field_validator("step", "low", "high", mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        """A field of a form that was left empty."""
        return None if value == "" else value

    @property
    def choice(self) -> Choice:
        kind = self.kind if self.of == "validation" else ""
        return Choice(kind, self.order, self.faulted, self.low, self.high)

    @property
    def words(self) -> str:
        """Without what is as usual, so that people can share the address."""
        return urlencode(self.model_dump(mode="json", exclude_defaults=True))

    @property
    def offset(self) -> int:
        return (self.page - 1) * ROWS

    def at(self, **changes: Any) -> SamplesQuery:
        """Another page; of another step or kind its first one."""
        return self.model_copy(update={"page": 1, **changes})

    def settle(self, validations: tuple[int, ...], trained: tuple[int, ...]) -> SamplesQuery:
        """With a kind and a step that there are: the last one that is not behind the wanted one."""
        of = self.of or ("validation" if validations or not trained else "trained")
        steps = validations if of == "validation" else trained
        before = [step for step in steps if self.step is None or step <= self.step]
        step = before[-1] if before else steps[0] if steps else None
        return self.model_copy(update={"of": of, "step": step})
