"""The display of a run while it goes on: a live table with a bar, or plain lines."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from commands.cli.plain import plain
from trimaran.run.event_words import columns_of, describe_heldout, event_words, format_cells
from trimaran.run.runs import EventKind, Run, RunEvent

NUM_ROWS = 10
"""Steps that the live table shows."""


class View:
    """Takes the run's events; the subclasses show them."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.run: Run | None = None
        """As the last event had it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def show(self, event: RunEvent) -> None:
        self.run = event.run
        match event.kind:
            case EventKind.STEP:
                self._step(event)
            case EventKind.VALIDATION:
                self._validation(event)
            case kind if kind is not EventKind.FINISHED or event.run.error:
                self.note(event, f"step {event.run.step}: {event_words(event)}")
            case _:
                pass  # the caller describes the end

    def note(self, event: RunEvent, text: str) -> None:
        """A line with the time of the event, which may be long ago where a watcher comes late."""
        clock = time.strftime("%H:%M:%S", time.localtime(event.time))
        # A Text: foreign words may look like rich's markup ("[/x]") or emoji ("rows.jsonl:100:").
        self.console.print(Text(plain(f"{clock}  {text}")), soft_wrap=True)

    def look(self, run: Run) -> None:
        """How the run stands between events."""

    def _step(self, event: RunEvent) -> None:
        raise NotImplementedError

    def _validation(self, event: RunEvent) -> None:
        raise NotImplementedError


class PlainView(View):
    """One line a step and a validation."""

    def _step(self, event: RunEvent) -> None:
        left = describe_left(event.run, event.time)
        self.note(event, "  ".join(filter(None, (_step_of(event.run), event_words(event), left))))

    def _validation(self, event: RunEvent) -> None:
        self.note(event, f"{_step_of(event.run)}  {event_words(event)}")


class LiveView(View):
    """A table of the last steps, the last validation and a bar with the time left."""

    def __init__(self, console: Console, num_steps: int) -> None:
        super().__init__(console)
        self._rows: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=NUM_ROWS)
        """A step, and its values."""
        self._heldout: dict[int, str] = {}
        self._held = ""
        """Why the run does not go on at the moment; empty while it does."""
        self._doing = ""
        self._bar = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("{task.fields[times]}"),
            console=console,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("run", total=num_steps, times="")
        self._live = Live(console=console, refresh_per_second=2, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, event: RunEvent) -> None:
        super().show(event)
        self._held = "" if event.run.state.has_ended else event.run.held
        self.look(event.run)

    def look(self, run: Run) -> None:
        self._doing = run.doing

    def _step(self, event: RunEvent) -> None:
        step = event.run.step
        self._rows.append((step, event.values))
        self._bar.update(self._task, completed=step, total=event.run.num_steps)

    def _validation(self, event: RunEvent) -> None:
        self._heldout[event.run.step] = describe_heldout(event.values)

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="bold")
        columns = columns_of(self._rows[-1][1] if self._rows else {})
        for heading in ("step", *(heading for heading, _, _ in columns)):
            table.add_column(heading, justify="right", no_wrap=True)
        for step, values in self._rows:
            table.add_row(str(step), *format_cells(values, columns))
        heldout = [Text(f"step {step}: {text}") for step, text in self._heldout.items()]
        held = [Text(f"held: {self._held}", style="bold yellow")] if self._held else []
        doing = [Text(plain(self._doing))] if self._doing else []
        self._bar.update(self._task, times=self._times())
        return Group(table, *heldout[:1], *heldout[1:][-2:], *held, *doing, self._bar)

    def _times(self) -> str:
        """Since when the run has been going, and when it may end."""
        if self.run is None or not self.run.started_at:
            return "starting"
        now = self.run.ended_at or time.time()
        since = f"{format_seconds(now - self.run.started_at)} since the start"
        left = describe_left(self.run, now)
        return f"{since}, {left}" if left else since


def choose_view(console: Console, num_steps: int) -> View:
    return LiveView(console, num_steps) if console.is_terminal else PlainView(console)


def describe_left(run: Run, now: float) -> str:
    """Empty where there is no estimate of the end."""
    left = run.seconds_left(now)
    return "" if left is None else f"about {format_seconds(left)} left"


def format_seconds(seconds: float) -> str:
    """Example: format_seconds(125.4) is "2:05"; with hours "1:02:05"."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _step_of(run: Run) -> str:
    return f"step {run.step}/{run.num_steps}"
