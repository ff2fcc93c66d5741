"""What a run writes about itself: logs, metrics and the timeline.

A row of metrics.jsonl is one step or one validation; a row of timeline.jsonl is one span of one
process. Each file has one writer at a time. On a full disk rows wait in memory; a caller that may wait for
room calls `flush`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, Literal

from trimaran.errors import InputError
from trimaran.host.append_file import AppendFile
from trimaran.telemetry import scope
from trimaran.telemetry.metrics import find_metric
from trimaran.telemetry.other_names import OtherNames
from trimaran.telemetry.sinks import AnswerRow, SinkThread

Activity = Literal["generating", "scoring", "training", "syncing", "validating"]

METRICS_NAME = "metrics.jsonl"
"""In the controller's run folder, as the next one."""
TIMELINE_NAME = "timeline.jsonl"
LOG_FORMAT = "%(asctime)s %(process_name)s %(levelname)s %(name)s: %(message)s"
LOG_VARIABLE = "TRIMARAN_LOG"
"""`text`, the default, or `json`: one object a line."""
LIVES = "trimaran.lives"
"""The logger of what becomes of each group: a few lines a group, in JSON only."""


def setup_logging(process_name: str, run_id: str = "") -> None:
    """Every log line of this process goes to stderr and says which process wrote it.

    Ours from INFO on; libraries, some of which report their whole configuration, from WARNING on.
    Raises InputError for an unknown format.
    """
    form = os.environ.get(LOG_VARIABLE) or "text"
    if form not in ("text", "json"):
        raise InputError(f"{LOG_VARIABLE}: {form!r} is no format; there are text and json")
    scope.process.name, scope.process.run_id = process_name, run_id
    scope.process.travels = form == "json"
    text = logging.Formatter(LOG_FORMAT, defaults={"process_name": process_name})
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    handler.addFilter(OncePerSecond())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("trimaran", "weights", "services", "commands"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger(LIVES).setLevel(logging.INFO if form == "json" else logging.WARNING)
    logging.captureWarnings(True)


class OncePerSecond(logging.Filter):
    """Lets one a second pass of warnings and errors that say the same: a failure that is met thousands of times
    must not fill the disk."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._logged: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now, what = self._clock(), (record.name, record.getMessage())
        if now - self._logged.get(what, -inf) < 1.0:
            return False
        self._logged = {one: at for one, at in self._logged.items() if now - at < 1.0}
        self._logged[what] = now
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with what the work at hand is about.

    Example: {"time": "2026-11-20T12:00:00.123Z", "level": "WARNING", "process": "controller",
    "logger": "services.controller.groups", "message": "...", "run": "addition-1", "group": 17}
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "process": scope.process.name,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if scope.process.run_id:
            line["run"] = scope.process.run_id
        line |= scope.facts()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class JsonLines:
    """Appends one JSON object a line; each line is one write.

    Example:
        rows = JsonLines(Path("rows.jsonl"))
        rows.append({"step": 1})
        rows.close()
        read_json_lines(Path("rows.jsonl")) == [{"step": 1}]
    """

    def __init__(self, path: Path) -> None:
        self._file = AppendFile(path)
        self._file.drop_torn_line()

    def append(self, row: Mapping[str, Any]) -> None:
        """On a full disk the row waits in memory."""
        self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")

    def flush(self) -> None:
        """Raises OSError where there is still no room."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a JSONL file; a last line that is still being written is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


class MetricsWriter:
    """metrics.jsonl, and the same numbers as TensorBoard events and at the sinks.

    Example:
        metrics = MetricsWriter(run_folder)
        metrics.write("step", 1, {"reward/completion/mean": 0.25})
        metrics.close()
    """

    def __init__(
        self,
        run_folder: Path,
        others: OtherNames | None = None,
        sinks: Sequence[SinkThread] = (),
    ) -> None:
        """`others`: names of other projects that steps have besides. `sinks` are closed by who opened
        them."""
        self.folder = run_folder
        self._others, self._sinks = others, sinks
        self._rows = JsonLines(run_folder / METRICS_NAME)
        self._events = TensorBoardFile(run_folder / "tensorboard")

    def write(
        self,
        kind: Literal["step", "validation"],
        step: int,
        values: Mapping[str, float],
        nonfinite: str = "",
        at: float | None = None,
    ) -> None:
        """Each key of `values` must be declared in trimaran/telemetry/metrics.py; else raises InternalError.

        A number that is not finite becomes null in the row; TensorBoard gets it as it is.
        `nonfinite`: why optimizer updates of a step were left out, in the row where it is given.
        `at`: unix seconds, where that is not now.
        """
        described = {key: find_metric(key).description for key in values}
        if self._others:
            others = self._others.of if kind == "step" else self._others.of_validation
            values = {**values, **others(values)}
        now = time.time() if at is None else at
        row = {key: value if math.isfinite(value) else None for key, value in values.items()}
        note = {"nonfinite": nonfinite} if nonfinite else {}
        self._rows.append({"kind": kind, "step": step, "time": now, **note, **row})
        self._events.add(now, step, values, described)
        for sink in self._sinks:
            sink.write(now, step, values)

    def write_answers(self, step: int, rows: Sequence[AnswerRow]) -> None:
        """A validation's answers, at the sinks alone: samples/ in the run folder has them already."""
        for sink in self._sinks if rows else ():
            sink.write_answers(step, rows)

    def flush(self) -> None:
        """Raises OSError where there is no room yet for what has waited."""
        self._rows.flush()
        self._events.flush()

    def close(self) -> None:
        self._rows.close()
        self._events.close()


class TensorBoardFile:
    """Scalars as TensorBoard reads them. Its own writer has a thread that dies on a full disk.

    Example: TensorBoardFile(run_folder / "tensorboard").add(time.time(), 1, {"trainer/loss": 0.5}, {})
    """

    def __init__(self, folder: Path) -> None:
        # Here, because it takes half a second that other processes need not pay; by name, because
        # TensorBoard has no type information.
        self._make_event = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summaries = import_module("tensorboard.compat.proto.summary_pb2")
        records = import_module("tensorboard.summary.writer.record_writer")
        folder.mkdir(exist_ok=True)
        host, now = socket.gethostname(), time.time()
        name = f"events.out.tfevents.{now:.0f}.{host}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
        self._file = AppendFile(folder / name)
        self._records = records.RecordWriter(self._file)
        self._write(wall_time=now, file_version="brain.Event:2")

    def add(
        self, now: float, step: int, values: Mapping[str, float], described: Mapping[str, str]
    ) -> None:
        """`now`: unix seconds. `described`: what each key means."""
        scalars = [
            self._summaries.Summary.Value(
                tag=key,
                simple_value=value,
                metadata=self._summaries.SummaryMetadata(
                    summary_description=described.get(key, "")
                ),
            )
            for key, value in values.items()
        ]
        self._write(wall_time=now, step=step, summary=self._summaries.Summary(value=scalars))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, **event: Any) -> None:
        self._records.write(self._make_event(**event).SerializeToString())


class TimelineWriter:
    """timeline.jsonl: what each process did when, in unix seconds.

    Example:
        timeline = TimelineWriter(run_folder)
        with timeline.span("trainer-0", "training", step=1):
            train()
    """

    def __init__(self, run_folder: Path) -> None:
        self._rows = JsonLines(run_folder / TIMELINE_NAME)

    def add(self, process: str, activity: Activity, start: float, end: float, step: int) -> None:
        self._rows.append(
            {"process": process, "activity": activity, "start": start, "end": end, "step": step}
        )

    @contextmanager
    def span(self, process: str, activity: Activity, step: int) -> Generator[None]:
        """Records the time in the block, also when the block fails."""
        start = time.time()
        try:
            yield
        finally:
            self.add(process, activity, start, time.time(), step)

    def flush(self) -> None:
        """Raises OSError where there is no room yet for what has waited."""
        self._rows.flush()

    def close(self) -> None:
        self._rows.close()
