"""Sinks: a thread that holds up nobody, and each service's real client where it is installed.

`make test-sinks` installs all four.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trimaran.errors import InputError
from trimaran.telemetry import sinks
from trimaran.telemetry.run_files import MetricsWriter
from trimaran.telemetry.sinks import (
    About,
    AnswerRow,
    SinkThread,
    close_sinks,
    open_sinks,
    without_secrets,
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


def test_rows_arrive_in_order_and_what_is_not_finite_does_not(tmp_path: Path) -> None:
    recorder = Recorder()
    thread = SinkThread("mine", lambda: recorder)
    metrics = MetricsWriter(tmp_path, sinks=[thread])
    metrics.write("step", 1, {"trainer/loss": 0.5, "trainer/grad_norm": float("nan")}, at=100.0)
    metrics.write("validation", 1, {"validation/greedy_reward/mean": 1.0}, at=101.0)
    metrics.close()
    close_sinks([thread])
    assert recorder.rows == [
        (100.0, 1, {"trainer/loss": 0.5}),
        (101.0, 1, {"validation/greedy_reward/mean": 1.0}),
    ]
    assert recorder.is_closed


ANSWER = AnswerRow(5, "h:1", "add", "1 + 2?", "It is 3", "3", 0.9, {"b": 1.0, "a": 0.5})
CELLS = [5, "h:1", "add", "1 + 2?", "It is 3", "3", 0.9, '{"a": 0.5, "b": 1.0}']
COLUMNS = ["step", "prompt_id", "task", "prompt", "answer", "reference", "reward", "terms"]


def test_answers_go_to_the_sinks_alone(tmp_path: Path) -> None:
    recorder = Recorder()
    thread = SinkThread("mine", lambda: recorder)
    metrics = MetricsWriter(tmp_path, sinks=[thread])
    metrics.write_answers(4, [])
    metrics.write_answers(5, [ANSWER])
    metrics.close()
    close_sinks([thread])
    assert recorder.answers == [(5, [ANSWER])]
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_long_texts_are_cut_in_a_table() -> None:
    row = dataclasses.replace(ANSWER, answer="x" * 10_000, reward=None)
    cells = row.cells()
    assert cells[4] == "x" * 8192 + " [1,808 more characters: samples/ of the run]"
    assert cells[6] is None
    assert ANSWER.text().splitlines()[:2] == ["step: 5", "prompt_id: h:1"]


@pytest.mark.parametrize("name", ["wandb", "swanlab", "mlflow", "trackio"])
def test_each_service_is_given_a_table_or_texts(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[tuple[Any, ...]] = []

    class Client:
        run_id = "r"

        def __getattr__(self, name: str) -> Any:
            return self if name == "info" else lambda *_, **__: self

        def log(self, values: Any, step: int) -> None:
            logged.append((values, step))

        def log_dict(self, run: Any, table: Any, path: str) -> None:
            logged.append((table, path))

    client: Any = Client()
    for module in ("wandb", "swanlab", "trackio", "mlflow.tracking", "mlflow.entities"):
        fake: Any = ModuleType(module)
        fake.init, fake.log, fake.Settings = (lambda **_: client), client.log, dict
        fake.Table = lambda data, columns=None: ("table", columns, data)
        fake.Text = lambda text, caption: ("text", text, caption)
        fake.MlflowClient, fake.Metric = (lambda **_: client), None
        monkeypatch.setitem(sys.modules, module, fake)
    sink = sinks.SINKS[name](About("p", "n", tmp_path, {}))
    sink.write_answers(5, [ANSWER])
    table = ("table", COLUMNS, [CELLS])
    expected = {
        "wandb": ({"validation/samples": table}, 5),
        "trackio": (
            {"validation/samples": ("table", None, [dict(zip(COLUMNS, CELLS, strict=True))])},
            5,
        ),
        "swanlab": ({"validation/samples": [("text", ANSWER.text(), "h:1")]}, 5),
        "mlflow": ({"columns": COLUMNS, "data": [CELLS]}, "validation/samples/step-00005.json"),
    }
    assert logged == [expected[name]]


def test_a_slow_one_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sinks, "MOST_ROWS", 3)
    gate = threading.Event()
    recorder = Recorder(gate)
    thread = SinkThread("mine", lambda: recorder)
    for step in range(10):
        thread.write(float(step), step, {"trainer/loss": 1.0})
    assert caplog.text.count("does not take rows: 3 wait") == 1
    close_sinks([thread], 0.05)
    gate.set()
    assert threading.active_count() >= 1


def test_a_failure_is_told_once_without_secrets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MINE_API_KEY", "abcdef0123456789")
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


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("wandb", "WANDB_BASE_URL", "https://me:hunter2@host"),
        ("wandb", "WANDB_BASE_URL", "https://me:hun@ter2@host/x"),
        ("mlflow", "MLFLOW_TRACKING_URI", "postgresql://me:hunter2@host:5432/db"),
    ],
)
def test_a_password_in_an_address_is_refused_and_not_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any, variable: str, value: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setenv(variable, value)
    with pytest.raises(InputError, match=f"^{variable}: it holds a password") as raised:
        open_sinks([name], About("p", "n", tmp_path, {}))
    assert "ter2" not in str(raised.value)
    assert "host" not in str(raised.value)


def test_wandb_is_told_to_take_numbers_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    client: Any = ModuleType("wandb")
    client.init, client.Settings = asked.update, dict
    monkeypatch.setitem(sys.modules, "wandb", client)
    sinks.WandbSink(About("p", "n", tmp_path, {}))
    assert asked["settings"] == {
        "console": "off",
        "disable_git": True,
        "disable_code": True,
        "silent": True,
    }


def test_short_values_of_the_environment_are_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "a")
    assert without_secrets(ValueError("a bad value")) == "ValueError: a bad value"


@pytest.fixture
def about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[About]:
    """Nothing leaves this machine."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    for name in ("WANDB_API_KEY", "SWANLAB_API_KEY", "MLFLOW_TRACKING_TOKEN", "HF_TOKEN"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
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


@pytest.mark.e2e
def test_swanlab_keeps_the_numbers_offline(about: About, caplog: pytest.LogCaptureFixture) -> None:
    sent("swanlab", about, caplog)
    files = [path for path in (about.folder / "swanlab").rglob("*") if path.is_file()]
    for told in (b"trainer/loss", b"It is 3"):
        assert any(told in path.read_bytes() for path in files)


@pytest.mark.e2e
def test_mlflow_has_the_numbers(about: About, caplog: pytest.LogCaptureFixture) -> None:
    sent("mlflow", about, caplog)
    from mlflow.tracking import MlflowClient  # pyright: ignore

    client: Any = MlflowClient(tracking_uri=f"sqlite:///{about.folder / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("arithmetic").experiment_id])
    found = [
        (m.step, m.value, m.timestamp)
        for m in client.get_metric_history(run.info.run_id, "trainer/loss")
    ]
    assert found == [(1, 0.5, 100_000), (2, 0.25, 101_000)]
    [table] = about.folder.rglob("step-00005.json")
    assert json.loads(table.read_text()) == {"columns": COLUMNS, "data": [CELLS]}
    assert run.info.status == "FINISHED"


@pytest.mark.e2e
def test_trackio_has_the_numbers(about: About, caplog: pytest.LogCaptureFixture) -> None:
    sent("trackio", about, caplog)
    import sqlite3

    [database] = (about.folder / "trackio").glob("*.db")
    rows: list[Any] = []
    for _ in range(50):
        rows = sqlite3.connect(database).execute("select step, metrics from metrics").fetchall()
        if len(rows) == 3:
            break
        time.sleep(0.1)
    found = [(step, json.loads(values)) for step, values in rows]
    assert [(step, row["trainer/loss"]) for step, row in found[:2]] == [(1, 0.5), (2, 0.25)]
    assert found[2][0] == 5
    assert found[2][1]["validation/samples"]["_value"] == [dict(zip(COLUMNS, CELLS, strict=True))]
