"""What a run writes about itself: logs, metrics and the timeline.

A row of metrics.jsonl is one step or one validation; a row of timeline.jsonl is one span of one
process. Rows are appended whole, so several processes may write to one file.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

# Keys that the live view and the figures read; a step's row may hold any others beside them.
REWARD_MEAN = "reward/completion/mean"
LENGTH_MEAN = "rollout/completion/length_mean"
LAG_MAX = "rollout/completion/lag_max"
TOKENS_PER_SECOND = "controller/step/tokens_per_second"
STEP_SECONDS = "controller/step/seconds"
PHASE_SECONDS = "controller/phase/{}_seconds"
"""One key an activity: the wall seconds of the step in which any process was at it."""
GREEDY_REWARD = "validation/greedy_reward"
SAMPLED_REWARD = "validation/sampled_reward"

Activity = Literal["generating", "scoring", "training", "syncing", "validating"]

LOG_FORMAT = "%(asctime)s %(process_name)s %(levelname)s %(name)s: %(message)s"


def setup_logging(process_name: str) -> None:
    """Every log line of this process goes to stderr and says which process wrote it.

    Ours from INFO on; libraries, some of which tell their whole configuration, from WARNING on.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT, defaults={"process_name": process_name}))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("trimaran", "services"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.captureWarnings(True)


class JsonLines:
    """Appends one JSON object a line; each line is one write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, row: Mapping[str, Any]) -> None:
        os.write(self._file, json.dumps(row, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a JSONL file; a last line that is still being written is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


class MetricsWriter:
    """metrics.jsonl, and the same numbers as TensorBoard events."""

    def __init__(self, run_folder: Path) -> None:
        # Here, because it takes half a second that other processes need not pay; by name, because
        # TensorBoard has no type information.
        writer = import_module("tensorboard.summary.writer.event_file_writer")
        self._rows = JsonLines(run_folder / "metrics.jsonl")
        self._events = writer.EventFileWriter(str(run_folder / "tensorboard"))

    def write(
        self,
        kind: Literal["step", "validation"],
        step: int,
        values: Mapping[str, float],
        nonfinite: str = "",
    ) -> None:
        """A number that is not finite becomes null in the row; TensorBoard gets it as it is.

        `nonfinite`: why optimizer updates of a step were left out, in the row where it is given.
        """
        make_event = import_module("tensorboard.compat.proto.event_pb2").Event
        make_summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        now = time.time()
        row = {key: value if math.isfinite(value) else None for key, value in values.items()}
        note = {"trainer/nonfinite": nonfinite} if nonfinite else {}
        self._rows.append({"kind": kind, "step": step, "time": now, **row, **note})
        summary = make_summary(
            value=[make_summary.Value(tag=key, simple_value=value) for key, value in values.items()]
        )
        self._events.add_event(make_event(wall_time=now, step=step, summary=summary))
        self._events.flush()

    def close(self) -> None:
        self._rows.close()
        self._events.close()


class TimelineWriter:
    """timeline.jsonl: what each process did when, in unix seconds."""

    def __init__(self, run_folder: Path) -> None:
        self._rows = JsonLines(run_folder / "timeline.jsonl")

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

    def close(self) -> None:
        self._rows.close()
