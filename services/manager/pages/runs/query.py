"""Which runs the table shows, and in which order: what its address says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field

from trimaran.run.runs import Run, RunState

MORE = 200
"""Rows of a page, and by how many `More` adds to it."""
MAX_ROWS = 100_000
UNENDED = "unended"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, by which it can be sorted."""

    title: str
    value: Callable[[Run], Any]
    """What it is sorted by; None stands last in either order."""
    is_figure: bool = False


COLUMNS = {
    "run": Column("Run", lambda run: run.run_id),
    "state": Column("State", lambda run: list(RunState).index(run.state)),
    "step": Column("Step", lambda run: run.step / run.num_steps if run.num_steps else 0.0),
    "end": Column("Ends in", lambda run: run.seconds_left(0.0)),
    "reward": Column("Reward", lambda run: run.reward, True),
    "held_out": Column("Held-out", lambda run: run.held_out, True),
    "devices": Column("Devices", lambda run: run.devices or None, True),
    "priority": Column("Priority", lambda run: run.priority, True),
    "age": Column("Age", lambda run: -run.created_at),
    "owner": Column("Owner", lambda run: run.owner or None),
}
"""By name in the address."""


class TableQuery(BaseModel):
    """Example: TableQuery(state=RunState.RUNNING, sort="-reward").address == "/runs?state=running&sort=-reward" """

    model_config = ConfigDict(frozen=True, extra="ignore")

    state: RunState | Literal["", "unended"] = ""
    owner: str = ""
    text: str = ""
    """In the run's id, whatever the case."""
    sort: str = Field(default="age", pattern=rf"^-?({'|'.join(COLUMNS)})$")
    """A column's name; `-` before it turns the order round."""
    rows: int = Field(default=MORE, ge=1, le=MAX_ROWS)

    @property
    def address(self) -> str:
        """Without what is as usual, so that people can share it."""
        said = self.model_dump(mode="json", exclude_defaults=True)
        return f"/runs?{urlencode(said)}" if said else "/runs"

    @property
    def is_filtered(self) -> bool:
        return bool(self.state or self.owner or self.text)

    def by(self, column: str) -> TableQuery:
        """Sorted by this one; asked for twice, the other way round."""
        return self.model_copy(update={"sort": f"-{column}" if self.sort == column else column})

    def more(self) -> TableQuery:
        return self.model_copy(update={"rows": self.rows + MORE})

    def order(self, column: str) -> str:
        """As aria-sort has it; "" where the table is sorted by another column."""
        orders = {column: "ascending", f"-{column}": "descending"}
        return orders.get(self.sort, "")

    def choose(self, runs: Iterable[Run]) -> list[Run]:
        """All that are meant, in their order."""
        found = [run for run in runs if self._has(run)]
        value = COLUMNS[self.sort.removeprefix("-")].value
        last = [run for run in found if value(run) is None]
        known = [run for run in found if value(run) is not None]
        return sorted(known, key=value, reverse=self.sort.startswith("-")) + last

    def _has(self, run: Run) -> bool:
        in_state = not run.state.has_ended if self.state == UNENDED else run.state == self.state
        return (
            (not self.state or in_state)
            and (not self.owner or run.owner == self.owner)
            and self.text.strip().lower() in run.run_id.lower()
        )
