"""What the manager takes and gives over HTTP, beside the types of `trimaran.run.runs`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from trimaran.run.runs import Run

MAX_INT32 = 2**31 - 1


class Form(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")


class Submission(Form):
    """A run to queue."""

    config: str | dict[str, JsonValue]
    """The run's YAML as text, or the same as JSON. Paths are absolute, on the manager's machine."""
    overrides: Annotated[list[str], Field(max_length=1000)] = []
    """Settings that replace the configuration's: `key.sub=value`."""
    priority: Annotated[int, Field(ge=-MAX_INT32, le=MAX_INT32)] = 0
    """Higher ones start first."""
    request_id: Annotated[str, Field(pattern=r"^[\x21-\x7e]{0,128}$")] = ""
    """Your own name of this request: sent twice, it is one run."""


class Scale(Form):
    """How many replicas the run may have."""

    min_replicas: Annotated[int, Field(ge=1, le=MAX_INT32)]
    max_replicas: Annotated[int, Field(ge=1, le=MAX_INT32)]


class RunPage(Form):
    """Runs, newest first."""

    runs: list[Run]
    next_page_token: str
    """For the next page; empty on the last one."""


class MetricRows(Form):
    """The metrics of a run so far."""

    rows: list[dict[str, JsonValue]]
    """Each has `kind` (step or validation), `step`, `time` (unix seconds) and the metrics."""
    missed: str
    """Which first rows are gone with their events; empty where none are."""


class LogNames(Form):
    """Which processes of a run have a log."""

    processes: list[str]


class Health(Form):
    """The answer to a probe."""

    status: str
