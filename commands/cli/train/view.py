"""The display of a run while it goes on: a line for each of its events."""

from __future__ import annotations

import re
import time

from rich.console import Console
from rich.text import Text

from commands.cli.plain import plain
from trimaran.run.event_words import event_words
from trimaran.run.runs import EventKind, Run, RunEvent


class View:
    """Takes the run's events, and how it stands between them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._doing = ""
        """The words that were shown last, without their numbers."""

    def show(self, event: RunEvent) -> None:
        words, run = event_words(event), event.run
        match event.kind:
            case EventKind.STEP:
                left = describe_left(run, event.time)
                self._note(event.time, "  ".join(filter(None, (_step_of(run), words, left))))
            case EventKind.VALIDATION:
                self._note(event.time, f"{_step_of(run)}  {words}")
            case kind if kind is not EventKind.FINISHED or run.error:
                self._note(event.time, f"step {run.step}: {words}")
            case _:
                pass  # the caller describes the end

    def look(self, run: Run) -> None:
        """What takes long, once: on a terminal, where somebody waits."""
        words = re.sub(r"\d+", "", run.doing)
        if self._console.is_terminal and words and words != self._doing:
            self._note(time.time(), run.doing)
        self._doing = words

    def _note(self, at: float, text: str) -> None:
        """A line with the time of the event, which may be long ago where a watcher comes late."""
        clock = time.strftime("%H:%M:%S", time.localtime(at))
        # A Text: foreign words may look like rich's markup ("[/x]") or emoji ("rows.jsonl:100:").
        self._console.print(Text(plain(f"{clock}  {text}")), soft_wrap=True)


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
