"""What a run looks like while it goes on: a live table and a bar, or plain lines."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from trimaran import metrics
from trimaran.cli.plain import plain
from trimaran.runs import EventKind, Run, RunEvent

NUM_ROWS = 10
"""Steps that the live table shows."""

# Heading, key in the step's values, format.
COLUMNS = (
    ("reward", metrics.REWARD_MEAN, "{:.3f}"),
    ("length", metrics.LENGTH_MEAN, "{:.1f}"),
    ("lag", metrics.LAG_MAX, "{:.0f}"),
    ("tokens/s", metrics.TOKENS_PER_SECOND, "{:.0f}"),
    ("step s", metrics.STEP_SECONDS, "{:.1f}"),
    ("generate", metrics.PHASE_SECONDS.format("generating"), "{:.1f}"),
    ("score", metrics.PHASE_SECONDS.format("scoring"), "{:.1f}"),
    ("train", metrics.PHASE_SECONDS.format("training"), "{:.1f}"),
    ("sync", metrics.PHASE_SECONDS.format("syncing"), "{:.1f}"),
)
HELDOUT = "held-out"


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
            case EventKind.UNKNOWN:
                self.note(
                    f"step {event.run.step}: an event that this version does not know: {event.text}"
                )
            case kind:
                text = event.run.error if kind is EventKind.FINISHED else event.text
                what = event.run.state if kind is EventKind.STATE else kind.replace("_", " ")
                if text or kind is EventKind.STATE:
                    self.note(f"step {event.run.step}: {what}{text and f': {text}'}")

    def note(self, text: str) -> None:
        # A Text: foreign words may look like rich's markup ("[/x]") or emoji ("rows.jsonl:100:").
        self.console.print(Text(plain(text)), soft_wrap=True)

    def _step(self, event: RunEvent) -> None:
        raise NotImplementedError

    def _validation(self, event: RunEvent) -> None:
        raise NotImplementedError


class PlainView(View):
    """One line a step and a validation."""

    def _step(self, event: RunEvent) -> None:
        cells = zip(COLUMNS, format_cells(event.values), strict=True)
        facts = "  ".join(f"{heading} {text}" for (heading, _, _), text in cells)
        self.note(f"step {event.run.step}/{event.run.num_steps}  {facts}")

    def _validation(self, event: RunEvent) -> None:
        self.note(f"step {event.run.step}/{event.run.num_steps}  {describe_heldout(event.values)}")


class LiveView(View):
    """A table of the last steps, the last validation and a bar with the time left."""

    def __init__(self, console: Console, num_steps: int) -> None:
        super().__init__(console)
        self._rows: deque[tuple[str, ...]] = deque(maxlen=NUM_ROWS)
        self._heldout: dict[int, str] = {}
        self._held = ""
        """Why the run does not go on at the moment; empty while it does."""
        self._clock = StepClock()
        self._bar = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("run", total=num_steps, left="starting")
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

    def _step(self, event: RunEvent) -> None:
        step = event.run.step
        self._rows.append((str(step), *format_cells(event.values)))
        self._clock.step_done(step)
        left = self._clock.seconds_left(event.run.num_steps)
        self._bar.update(
            self._task, completed=step, total=event.run.num_steps, left=describe_left(left)
        )

    def _validation(self, event: RunEvent) -> None:
        self._heldout[event.run.step] = describe_heldout(event.values)

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("step", *(heading for heading, _, _ in COLUMNS)):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(*row)
        heldout = [Text(f"step {step}: {text}") for step, text in self._heldout.items()]
        held = [Text(f"held: {self._held}", style="bold yellow")] if self._held else []
        return Group(table, *heldout[:1], *heldout[1:][-2:], *held, self._bar)


class StepClock:
    """Foretells the end from the mean step since the first one seen."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=NUM_ROWS)

    def step_done(self, step: int, now: float | None = None) -> None:
        self._seen.append((step, time.monotonic() if now is None else now))

    def seconds_left(self, num_steps: int) -> float | None:
        """None until two steps are done."""
        if len(self._seen) < 2 or self._seen[-1][0] <= self._seen[0][0]:
            return None
        (first_step, first), (last_step, last) = self._seen[0], self._seen[-1]
        return (num_steps - last_step) * (last - first) / (last_step - first_step)


def choose_view(console: Console, num_steps: int) -> View:
    return LiveView(console, num_steps) if console.is_terminal else PlainView(console)


def format_cells(values: Mapping[str, float]) -> list[str]:
    """One text a column; a dash where the step has no such number."""
    return [form.format(values[key]) if key in values else "-" for _, key, form in COLUMNS]


def describe_heldout(values: Mapping[str, float]) -> str:
    names = (("greedy", metrics.GREEDY_REWARD), ("sampled", metrics.SAMPLED_REWARD))
    parts = [f"{name} {values[key]:.3f}" for name, key in names if key in values]
    return f"{HELDOUT} reward: {', '.join(parts)}"


def describe_left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"about {minutes}:{rest:02} left"
