"""`trimaran doctor` as it is typed, and what the start of a run says."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from commands.cli.inspect import doctor as command
from commands.cli.main import main
from commands.cli.train.preflight import show_errors
from commands.doctor.finding import Finding, Severity
from commands.doctor.report import DoctorReport, HostReport
from tests.doctor.made import config
from tests.tiny_model import write_tiny_model
from trimaran.host.machine import GpuMemory, Machine


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    """Of a run whose data is missing."""
    (tmp_path / "run.yaml").write_text(config(tmp_path).model_dump_json())
    return str(tmp_path / "run.yaml")


def test_json_has_the_form_that_the_document_shows(
    run_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["doctor", run_file, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == 1
    assert report["form"] == 1
    (host,) = report["hosts"]
    for finding in host["findings"]:
        assert list(finding) == ["check", "fault", "severity", "what", "why", "fix"]
        assert finding["severity"] in ("fine", "warning", "error")
    assert "refused" in {one["fault"] for one in host["findings"] if one["check"] == "run"}
    assert report["links"] == []


def test_people_read_errors_first_with_reason_and_remedy() -> None:
    findings = (
        Finding("tools", "", Severity.FINE, "nothing found"),
        Finding(
            "tools", "ip", Severity.WARNING, "no `ip`", "scripts", "apt-get install -y iproute2"
        ),
        Finding("disks", "room", Severity.ERROR, "full", "it is held", "df -h\nrm old"),
    )
    report = DoctorReport((HostReport("node-1", findings),))
    assert list(report.lines()) == [
        "node-1:",
        "  error: full",
        "    why: it is held",
        "    fix: df -h",
        "         rm old",
        "  warning: no `ip`",
        "    why: scripts",
        "    fix: apt-get install -y iproute2",
        "  fine: tools",
    ]
    assert report.worst is Severity.ERROR


def test_warnings_alone_are_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "0")
    assert main(["doctor"]) == 0
    assert "warning: VLLM_USE_V1=0" in capsys.readouterr().out


def test_gpus_that_others_have_filled_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = config(tmp_path, rollout={"max_tokens": 64, "max_prompt_tokens": 64})
    write_tiny_model(tmp_path / "model")
    (tmp_path / "run.yaml").write_text(run.model_dump_json())
    gpus = (GpuMemory(80 << 30, 79 << 30), GpuMemory(80 << 30, 1 << 30))
    monkeypatch.setattr(command, "read_machine", lambda _: Machine({}, frozenset(), 0, num_gpus=2))
    monkeypatch.setattr(command, "read_gpus", lambda _: gpus)
    capsys.readouterr()
    main(["doctor", str(tmp_path / "run.yaml")])
    said = capsys.readouterr().out
    assert "warning: GPU 1 has 1 GiB free of 80 GiB, and rollout 0 takes 68 GiB of it" in said
    assert "GPU 0 has" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["--host", "10.0.0.2:7990"], "give --token-file FILE"),
        (["--host", "nowhere", "--token-file", "TOKEN"], "--host nowhere: give HOST:PORT"),
        (["--listen", "10.0.0.2:7990", "--token-file", "TOKEN"], "is beyond loopback"),
        (["--listen", "nowhere", "--token-file", "TOKEN"], "--listen nowhere"),
        (["--listen", "127.0.0.1:0"], "give --token-file"),
        (["--host", "127.0.0.1:1", "--token-file", "OPEN"], "others can read this token"),
        (["--store", "sqlite:x"], "give redis://HOST:PORT/DB"),
    ],
)
def test_what_is_given_wrongly_is_reported(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, mode in (("TOKEN", 0o600), ("OPEN", 0o644)):
        (tmp_path / name).write_text("a-token-of-a-test")
        (tmp_path / name).chmod(mode)
    given = [str(tmp_path / word) if word in ("TOKEN", "OPEN") else word for word in arguments]
    assert main(["doctor", *given]) == 2
    assert words in capsys.readouterr().err


def test_before_a_start_each_error_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth99")
    monkeypatch.setenv("VLLM_USE_V1", "0")  # a warning, which stays for `trimaran doctor`
    show_errors(config(tmp_path))
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("doctor: GLOO_SOCKET_IFNAME=eth99: there is no such interface")
    assert "export GLOO_SOCKET_IFNAME=" in line
    assert not said.out


@pytest.mark.e2e
@pytest.mark.parametrize("command", ["train", "up"])
def test_a_run_and_a_manager_say_so_before_they_start(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They go on then; here they end because a port is taken."""
    write_tiny_model(tmp_path / "model")
    capsys.readouterr()  # what its writing says
    (tmp_path / "train.jsonl").write_text('{"prompt": "1 + 2", "answer": "3"}\n')
    sections = {"rollout": {"engine": "transformers", "max_tokens": 8, "max_prompt_tokens": 64}}
    run = {"model": {"path": "model"}, "data": {"train": "train.jsonl"}, **sections}
    (tmp_path / "run.yaml").write_text(json.dumps({**run, "reward": {"rules": {"gsm8k": 1.0}}}))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth99")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = {
            "train": [str(tmp_path / "run.yaml"), f"endpoints.reward={address}"],
            "up": ["--folder", str(tmp_path / "runs"), "--address", address],
        }
        assert main([command, *words[command]]) == 2
    reported = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in reported] == ["doctor", "error"], reported
