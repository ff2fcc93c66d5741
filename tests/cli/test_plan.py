"""`trimaran plan`, and what it refuses at the start of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.tiny_model import write_tiny_model
from trimaran.cli import plan as plan_command
from trimaran.cli.main import main
from trimaran.cli.plan import check_memory
from trimaran.config import load_config
from trimaran.doctor.memory import Memory
from trimaran.errors import InputError
from trimaran.machine import Machine

CPU = Machine({}, frozenset(), 0, 0)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    write_tiny_model(tmp_path / "model")
    tree = {
        "model": {"path": "model"},
        "data": {"train": "train.jsonl"},
        "reward": {"rules": {"last_integer": 1.0}},
        "rollout": {
            "max_tokens": 64,
            "max_prompt_tokens": 64,
            "kv_cache_gib": 0.01,
            "device": "cpu",
        },
        "trainer": {"device": "cpu"},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_it_prints_tables(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(run_file), "trainer.tensor_parallel=2"]) == 0
    out, err = capsys.readouterr()
    assert "trainer rank, GiB" in out
    assert "0-1" in out
    assert err == ""


def test_what_cannot_fit_is_exit_code_2_with_what_to_change(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(run_file), "--device-memory", "0.01"]) == 2
    assert "error: this host: the run's processes take" in capsys.readouterr().err


def test_device_memory_is_that_of_each_device(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = ["trainer.device=npu", "rollout.device=npu"]
    assert main(["plan", str(run_file), *devices, "--device-memory", "0.004"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: trainer: weights, gradients and optimizer")
    assert main(["plan", str(run_file), *devices, "--device-memory", "80"]) == 0


def test_a_model_that_is_not_here_is_bad_input(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", str(run_file), "model.path=nowhere", "model.source=s3://models/x"]
    assert main(arguments) == 2
    assert "is not here yet" in capsys.readouterr().err


def test_a_run_is_refused_where_its_fixed_parts_are_too_much(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(run_file)
    check_memory(config, CPU)
    monkeypatch.setattr(plan_command, "read_memory", lambda system: Memory(1 << 28, 1 << 28))
    with pytest.raises(InputError, match="this host: the run's processes take"):
        check_memory(config, CPU)


def test_a_model_that_its_services_fetch_refuses_nothing(run_file: Path) -> None:
    check_memory(load_config(run_file, ["model.path=nowhere", "model.source=s3://models/x"]), CPU)


def test_a_reader_that_has_enough_ends_a_command_without_a_word(run_file: Path) -> None:
    """As after `| head`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "trimaran.cli", "plan", str(run_file)]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")
