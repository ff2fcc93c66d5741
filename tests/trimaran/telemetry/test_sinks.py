"""Sinks: a thread that holds nothing up, wandb's real client where it is installed (`make test-sinks`), and packages' sinks."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.extending.packages import install
from trimaran.errors import InputError
from trimaran.telemetry import sinks
from trimaran.telemetry.run_files import MetricsWriter
from trimaran.telemetry.sinks import (
    About,
    AnswerRow,
    SinkThread,
    close_sinks,
    open_sinks,
)

KEY = "0123456789abcdef0123456789abcdef01234567"
ROWS = [(100.0, 1, {"trainer/loss": 0.5}), (101.0, 2, {"trainer/loss": 0.25, "actor/lr": 1e-6})]


class Recorder:
    def __init__(self, gate: threading.Event | None = None, fault: str = "") -> None:
        self.rows: list[tuple[float, int, dict[str, float]]] = []
        self.answers: list[tuple[int, list[AnswerRow]]] = []
        self.is_closed = False
        self._gate, self._fault = gate, fault

    def write(self, now: float, step: int, values: Mapping[str, float]) -> None:
        if self._gate:
            self._gate.wait(10)
        if self._fault:
            raise RuntimeError(self._fault)
        self.rows.append((now, step, dict(values)))

    def write_answers(self, step: int, rows: Sequence[AnswerRow]) -> None:
        self.answers.append((step, list(rows)))

    def close(self) -> None:
        self.is_closed = True


ANSWER = AnswerRow(5, "h:1", "add", "1 + 2?", "It is 3", "3", 0.9, {"b": 1.0, "a": 0.5})
CELLS = [5, "h:1", "add", "1 + 2?", "It is 3", "3", 0.9, '{"a": 0.5, "b": 1.0}']
COLUMNS = ["step", "prompt_id", "task", "prompt", "answer", "reference", "reward", "terms"]


def test_rows_arrive_in_order_with_answers_and_without_what_is_not_finite(tmp_path: Path) -> None:
    recorder = Recorder()
    thread = SinkThread("mine", lambda: recorder)
    metrics = MetricsWriter(tmp_path, sinks=[thread])
    metrics.write("step", 1, {"trainer/loss": 0.5, "trainer/grad_norm": float("nan")}, at=100.0)
    metrics.write("validation", 1, {"validation/greedy_reward/mean": 1.0}, at=101.0)
    metrics.write_answers(4, [])
    metrics.write_answers(5, [ANSWER])
    metrics.close()
    close_sinks([thread])
    assert recorder.rows == [
        (100.0, 1, {"trainer/loss": 0.5}),
        (101.0, 1, {"validation/greedy_reward/mean": 1.0}),
    ]
    assert recorder.answers == [(5, [ANSWER])] and recorder.is_closed
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2  # no answers


def test_long_texts_are_cut_in_a_table() -> None:
    row = dataclasses.replace(ANSWER, answer="x" * 10_000, reward=None)
    cells = row.cells()
    assert cells[4] == "x" * 8192 + " [1,808 more characters: samples/ of the run]"
    assert cells[6] is None


def test_a_validation_is_a_table_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[Any, ...]] = []

    class Run:
        def log(self, values: Any, step: int) -> None:
            logged.append((values, step))

    client: Any = ModuleType("wandb")
    client.init, client.Settings = (lambda **_: Run()), dict
    client.Table = lambda data, columns: ("table", columns, data)
    monkeypatch.setitem(sys.modules, "wandb", client)
    sinks.WandbSink(About("p", "n", tmp_path, {})).write_answers(5, [ANSWER])
    assert logged == [({"validation/samples": ("table", COLUMNS, [CELLS])}, 5)]


def test_a_slow_one_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sinks, "MOST_ROWS", 3)
    gate = threading.Event()
    thread = SinkThread("mine", lambda: Recorder(gate))
    for step in range(10):
        thread.write(float(step), step, {"trainer/loss": 1.0})
    assert caplog.text.count("does not take rows: 3 wait") == 1
    close_sinks([thread], 0.05)
    gate.set()


def test_a_failure_is_reported_once_without_secrets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MINE_API_KEY", "abcdef0123456789")
    monkeypatch.setenv("SOME_TOKEN", "a")  # too short for a secret
    fault = "refused key abcdef0123456789 at https://me:hunter2@host/path"
    thread = SinkThread("mine", lambda: Recorder(fault=fault))
    thread.write(1.0, 1, {"trainer/loss": 1.0})
    thread.write(2.0, 2, {"trainer/loss": 1.0})
    close_sinks([thread])
    [record] = caplog.records
    assert record.getMessage() == (
        "mine gets no more rows: RuntimeError: refused key *** at https://***@host/path;"
        " metrics.jsonl has all"
    )


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"metrics\.sinks: wandb needs the package wandb .*pip install wandb"
    ):
        open_sinks(["wandb"], About("p", "n", tmp_path, {}))
    assert open_sinks([], About("p", "n", tmp_path, {})) == []


@pytest.mark.parametrize("value", ["https://me:hunter2@host", "https://me:hun@ter2@host/x"])
def test_a_password_in_an_address_is_refused_and_not_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setenv("WANDB_BASE_URL", value)
    with pytest.raises(InputError, match="^WANDB_BASE_URL: it holds a password") as raised:
        open_sinks(["wandb"], About("p", "n", tmp_path, {}))
    assert "ter2" not in str(raised.value)
    assert "host" not in str(raised.value)


def test_an_installed_package_adds_a_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = {
        "sinks_package/__init__.py": "",
        "sinks_package/sink.py": """
class Lines:
    def __init__(self, about):
        self.file = (about.folder / "lines").open("a")

    def write(self, now, step, values):
        print(step, values["trainer/loss"], file=self.file)

    def close(self):
        self.file.close()
""",
    }
    points = {"trimaran.sinks": {"lines": "sinks_package.sink:Lines"}}
    monkeypatch.syspath_prepend(str(install(tmp_path, points, code, "sinks-package")))
    [thread] = open_sinks(["lines"], About("p", "n", tmp_path, {}))
    for row in ROWS:
        thread.write(*row)
    close_sinks([thread])
    assert (tmp_path / "lines").read_text() == "1 0.5\n2 0.25\n"
    with pytest.raises(InputError, match="'swanlab' is unknown"):
        open_sinks(["swanlab"], About("p", "n", tmp_path, {}))


@pytest.fixture
def about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[About]:
    """Nothing leaves this machine."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    yield About("arithmetic", "run-1", tmp_path, {"run": {"seed": 1}})


def sent(name: Any, about: About, caplog: pytest.LogCaptureFixture) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed here: `make test-sinks` installs and runs it")
    with caplog.at_level(logging.WARNING, logger="trimaran.telemetry.sinks"):
        [thread] = open_sinks([name], about)
        for row in ROWS:
            thread.write(*row)
        thread.write_answers(5, [ANSWER])
        close_sinks([thread], 120)
    assert [
        record.getMessage()
        for record in caplog.records
        if record.name == "trimaran.telemetry.sinks"
    ] == []
    files = [path for path in about.folder.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.e2e
def test_wandb_keeps_the_numbers_offline(about: About, caplog: pytest.LogCaptureFixture) -> None:
    sent("wandb", about, caplog)
    [folder] = (about.folder / "wandb").glob("offline-run-*")
    [log] = folder.glob("run-*.wandb")
    assert b"trainer/loss" in log.read_bytes()
    [table] = folder.rglob("*.table.json")
    assert json.loads(table.read_text())["data"] == [CELLS]
    assert list(folder.rglob("output.log")) == []
