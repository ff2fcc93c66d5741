"""Services that show a run's numbers: Weights & Biases, and those of installed packages.

Each has a thread of its own, so that one that is slow or away holds up nothing: its rows wait, and are
dropped with a warning where too many do. What it is called at and with which key it takes from the
environment, as its own documents say; neither is read, written or logged here.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from trimaran.choices import SINKS
from trimaran.config import RunConfig, config_to_tree
from trimaran.errors import InputError

logger = logging.getLogger(__name__)

MOST_ROWS = 10_000
"""That wait for a sink."""
ANSWERS = "validation/samples"
ANSWER_COLUMNS = ("step", "prompt_id", "task", "prompt", "answer", "reference", "reward", "terms")
MAX_CELL = 8192
"""Characters of a text in a table."""
CLOSE_SECONDS = 15.0
"""For all sinks together to take what waits, when the run ends. Less than a process that was asked to
end has for that."""
SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
LOGIN = re.compile(r"//[^/@\s]+@")
PASSWORD = re.compile(r"//[^/\s]*:[^/\s]*@")


@dataclass(frozen=True, slots=True)
class About:
    """What a sink knows of the run."""

    project: str
    name: str
    folder: Path
    """The run's; a sink writes its own files into it, if it has any."""
    config: Mapping[str, Any]

    @classmethod
    def of(cls, config: RunConfig, folder: Path) -> About:
        return cls(config.metrics.project, folder.name, folder, config_to_tree(config))


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """A row of the table of a validation's answers.

    Example: AnswerRow(20, "heldout.jsonl:1", "addition", "1 + 2?", "3", "3", 1.0, {"exact": 1.0})
    """

    step: int
    prompt_id: str
    task: str
    prompt: str
    """The text of its last message."""
    answer: str
    """The model's."""
    reference: str
    reward: float | None
    """None where it could not be scored."""
    terms: Mapping[str, float]

    def cells(self) -> list[str | int | float | None]:
        """By ANSWER_COLUMNS; long texts are cut, and the terms are JSON."""
        terms = json.dumps(dict(self.terms), sort_keys=True)
        texts = map(_cut, (self.prompt, self.answer, self.reference))
        return [self.step, self.prompt_id, self.task, *texts, self.reward, terms]


def _cut(text: str) -> str:
    if len(text) <= MAX_CELL:
        return text
    return f"{text[:MAX_CELL]} [{len(text) - MAX_CELL:,} more characters: samples/ of the run]"


class Sink(Protocol):
    """One service, called from one thread."""

    def write(self, now: float, step: int, values: Mapping[str, float]) -> None:
        """`now`: unix seconds. `values` are finite."""
        ...

    def write_answers(self, step: int, rows: Sequence[AnswerRow]) -> None:
        """As a table of its own for each validation."""
        ...

    def close(self) -> None: ...


class WandbSink:
    """WANDB_MODE=offline keeps it in the run folder, for `wandb sync`."""

    def __init__(self, about: About) -> None:
        self._wandb = import_module("wandb")
        self._run = self._wandb.init(
            project=about.project,
            name=about.name,
            id=about.name,
            resume="allow",
            dir=str(about.folder),
            config=dict(about.config),
            # Numbers only: neither the controller's log, nor the code or repository it stands in.
            settings=self._wandb.Settings(
                console="off", disable_git=True, disable_code=True, silent=True
            ),
        )

    def write(self, now: float, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def write_answers(self, step: int, rows: Sequence[AnswerRow]) -> None:
        data = [row.cells() for row in rows]
        table = self._wandb.Table(columns=list(ANSWER_COLUMNS), data=data)
        self._run.log({ANSWERS: table}, step=step)

    def close(self) -> None:
        self._run.finish()
        self._wandb.teardown()  # ends the process that it has started


class SinkThread:
    """Takes rows at once, and hands them to a sink in a thread of its own.

    Example:
        thread = SinkThread("wandb", lambda: WandbSink(about))
        thread.write(time.time(), 1, {"trainer/loss": 0.5})
        close_sinks([thread])
    """

    def __init__(self, name: str, make: Callable[[], Sink]) -> None:
        self._name, self._make = name, make
        self._calls: queue.Queue[Callable[[Sink], None] | None] = queue.Queue(MOST_ROWS)
        self._has_dropped = False
        self._thread = threading.Thread(target=self._work, name=f"sink-{name}", daemon=True)
        self._thread.start()

    def write(self, now: float, step: int, values: Mapping[str, float]) -> None:
        """Numbers that are not finite are left out. Returns at once. For a sink that has failed
        nothing is kept."""
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        self._put(lambda sink: sink.write(now, step, finite))

    def write_answers(self, step: int, rows: Sequence[AnswerRow]) -> None:
        """A validation's table. Returns at once."""
        self._put(lambda sink: sink.write_answers(step, rows))

    def _put(self, call: Callable[[Sink], None]) -> None:
        if not self._thread.is_alive():
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            if not self._has_dropped:
                logger.warning(
                    "%s does not take rows: %d wait, and further ones are dropped; metrics.jsonl has all",
                    *(self._name, MOST_ROWS),
                )
            self._has_dropped = True

    def end(self) -> None:
        """No further rows come: the sink takes what waits, and closes. Returns at once."""
        with suppress(queue.Full):  # it has not taken any for long
            self._calls.put_nowait(None)

    def wait(self, timeout: float) -> None:
        """Until the sink has closed, or for `timeout` seconds; then a warning names it."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            logger.warning(
                "%s has not ended in time; what it has not taken is in metrics.jsonl", self._name
            )

    def _work(self) -> None:
        try:
            sink = self._make()
            while (call := self._calls.get()) is not None:
                call(sink)
            sink.close()
        except BaseException as error:  # SystemExit too, which a client may raise without a login
            logger.warning(
                "%s gets no more rows: %s; metrics.jsonl has all",
                self._name,
                without_secrets(error),
            )
            self._calls = queue.Queue()  # what has waited is let go


def close_sinks(sinks: Sequence[SinkThread], seconds: float = CLOSE_SECONDS) -> None:
    """Side by side: waits until all have taken what waits, but not for longer. Blocks, so that an event
    loop calls it in a thread."""
    deadline = time.monotonic() + seconds
    for sink in sinks:
        sink.end()
    for sink in sinks:
        sink.wait(max(0.0, deadline - time.monotonic()))


def open_sinks(names: Sequence[str], about: About) -> list[SinkThread]:
    """Raises InputError where the package of one is not installed here, or wandb's address has a password."""
    makers = {name: SINKS.load(name) for name in names}
    if "wandb" in makers:
        _check_wandb()
    return [SinkThread(name, partial(make, about)) for name, make in makers.items()]


def _check_wandb() -> None:
    if PASSWORD.search(os.environ.get("WANDB_BASE_URL", "")):
        raise InputError(
            "WANDB_BASE_URL: it holds a password (user:password@), which the client of wandb writes into"
            " files; take it out, and set WANDB_API_KEY"
        )
    if importlib.util.find_spec("wandb") is None:
        raise InputError(
            "metrics.sinks: wandb needs the package wandb where the controller runs: pip install wandb, or"
            " leave it out"
        )


def without_secrets(error: BaseException) -> str:
    """An error's text without what the environment keeps secret, and without logins in addresses."""
    text = f"{type(error).__name__}: {error}"
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) >= 6:
            text = text.replace(value, "***")
    return LOGIN.sub("//***@", " ".join(text.split()))
