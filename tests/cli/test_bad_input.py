"""Each wrong input gives one clear message, exit code 2, no traceback, and starts nothing."""

from __future__ import annotations

import socket
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from commands.cli.main import main
from commands.cli.serve.launch import prepared
from tests.cli.conftest import Ran, WriteRun
from trimaran.config import load_config
from trimaran.run.context import RunContext
from trimaran.run.place import has_checkpoint

ROOT = Path(__file__).parents[2]
Refused = Callable[..., str]


@pytest.fixture
def refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Refused:
    """refused(arguments…) -> the message; fails when anything was started or left behind."""
    monkeypatch.setattr("commands.cli.serve.launch.run_services", lambda *_: pytest.fail("started"))

    def run(*arguments: object) -> str:
        assert main([str(argument) for argument in arguments]) == 2
        message = capsys.readouterr().err
        assert message.startswith("error: ")
        assert "Traceback" not in message
        assert not (tmp_path / "runs").exists()
        return message

    return run


@pytest.mark.parametrize(
    "words",
    [
        ["up", "--store={}"],
        ["up", "store={}"],
        ["doctor", "--store={}"],
        ["train", "no", "--store={}"],
    ],
)
def test_a_password_on_the_command_line_is_refused(words: list[str], ran: Ran) -> None:
    url = "redis://:hidden@127.0.0.1:6379/0"
    text = ran([word.format(url) for word in words], 2).err
    assert "password_file" in text
    assert "hidden" not in text


def test_a_run_that_has_a_checkpoint_of_its_own_needs_none_to_begin_with(
    write_run: WriteRun, tmp_path: Path
) -> None:
    config = load_config(write_run(trainer={"load": "gone"}))
    run = RunContext.in_folder(tmp_path / "run")
    assert not has_checkpoint(config, run)
    state = tmp_path / "run" / "checkpoints" / "step-00010" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    assert has_checkpoint(config, run)
    assert prepared(config, "local", move_busy=False, run=run).trainer == config.trainer


def test_the_newest_checkpoint_to_begin_with_is_chosen_once(
    write_run: WriteRun, tmp_path: Path
) -> None:
    """The run that writes them may go on, while this one is started again before it has one of its own."""
    config = load_config(write_run(trainer={"load": "first"}))
    states = [tmp_path / f"first/checkpoints/step-000{step}/state.json" for step in (10, 20)]
    for state in states:
        state.parent.mkdir(parents=True)
        state.write_text("{}")
        config = prepared(config, "local", move_busy=False)
        assert config.trainer.load == states[0].parent


NESTED = "a: " + "[" * 600
"""Deeper than what reads it can go."""


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ("train {nested}", "not YAML: too many levels"),
        ("up --config {nested}", "not YAML: too many levels"),
        ("import verl {nested}", "not YAML: too many levels"),
        ("train {nested_value}", "not YAML: month must be in 1..12"),
        ("up --folder {file}/runs", "--folder: {file}/runs cannot be made (Not a directory)"),
        (
            "data show {run} model.path=gone --images {file}/seen",
            "error: {file}/seen: Not a directory",
        ),
    ],
)
def test_a_file_or_folder_that_cannot_be_used_is_named(
    words: str, reported: str, write_run: WriteRun, refused: Refused, tmp_path: Path
) -> None:
    names = {name: tmp_path / name for name in ("nested", "nested_value", "file")}
    names["nested"].write_text(NESTED)
    names["nested_value"].write_text("run: {name: 2020-13-45}")
    names["file"].touch()
    names["run"] = write_run()
    assert reported.format(**names) in refused(*(word.format(**names) for word in words.split()))


@pytest.mark.parametrize(
    ("words", "nearest"),
    [("trian", "train"), ("data chekc", "check"), ("serve rolout", "rollout")],
)
def test_a_misspelt_word_is_answered_with_the_nearest(
    words: str, nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert f"; did you mean {nearest}?" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert capsys.readouterr().out == f"trimaran {known['project']['version']}\n"


@pytest.mark.parametrize("command", [["train"], ["data", "show"], ["import", "verl"]])
def test_a_second_file_where_settings_are_expected(
    command: list[str], write_run: WriteRun, refused: Refused, tmp_path: Path
) -> None:
    file, second, absent = write_run(), tmp_path / "second", tmp_path / "absent.yaml"
    second.write_text("run: {seed: 2}\n")
    for other in (second, absent):
        message = refused(*command, file, "run.seed=3", other)
        assert message.startswith(f"error: {other}: only one file can be given")
        assert "settings such as run.seed=2" in message
        assert message.count("\n") == 1


def test_a_file_of_a_manager_without_its_option(refused: Refused) -> None:
    message = refused("up", "manager.yaml")
    assert message == "error: manager.yaml: give the operator's file as --config manager.yaml\n"


def test_a_port_in_use(write_run: WriteRun, refused: Refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        message = refused("train", write_run(endpoints={"reward": address}))
    assert f"endpoints.reward: {address}: port in use" in message


@pytest.mark.parametrize("service", ["rollout", "trainer"])
def test_a_variable_that_would_harm_the_groups_of_an_npu(
    write_run: WriteRun, refused: Refused, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    monkeypatch.setenv("RANK_TABLE_FILE", "/etc/hccl.json")
    message = refused("train", write_run(**{service: {"device": "npu"}}))
    line = f"{service}.device npu: RANK_TABLE_FILE=/etc/hccl.json is set"
    assert any(line in other for other in message.splitlines())


def test_resuming_what_is_no_run(refused: Refused, tmp_path: Path) -> None:
    assert "is not a run folder" in refused("train", "--resume", tmp_path)
    message = refused("train", "--resume", tmp_path, "run.seed=3")
    assert message.startswith("error: run.seed: a resumed run keeps it")


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ("serve reward", "endpoints.reward: missing"),
        ("serve rollout --index 3", "endpoints.rollout[3]: missing"),
        ("serve rollout", "endpoints.weight_sync: missing"),
    ],
)
def test_a_service_alone_without_addresses_or_a_folder(
    words: str, reported: str, write_run: WriteRun, refused: Refused, tmp_path: Path
) -> None:
    path = write_run(endpoints={"rollout": ["127.0.0.1:7001"]})
    assert reported in refused(*words.split(), "--config", path, "--run-folder", tmp_path)
    path = write_run(endpoints={"reward": "127.0.0.1:7001"})
    missing = tmp_path / "nowhere"
    words = "serve reward --run-folder"
    assert f"{missing} is not a folder" in refused(*words.split(), missing, "--config", path)


def test_devices_that_are_not_there(
    write_run: WriteRun, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything starts, on any machine: this shell shows none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    monkeypatch.delenv("ATB_HOME_PATH", raising=False)
    message = refused("train", write_run(rollout={"device": "cuda"}))
    assert "rollout.device cuda: no GPU is in sight" in message
    message = refused("train", write_run(trainer={"device": "cpu"}), "trainer.devices=[0]")
    assert "trainer.devices: trainer.device is cpu here, which has no numbers" in message
    addresses = {"rollout": ["127.0.0.1:7001"], "weight_sync": "127.0.0.1:7002"}
    path = write_run(rollout={"device": "npu"}, endpoints=addresses)
    message = refused("serve", "rollout", "--config", path, "--run-folder", tmp_path)
    assert "rollout.device npu: no device /dev/davinci[0-9]* is visible" in message
    assert "rollout.device npu: ATB is not set up in this shell" in message


def test_a_service_without_a_configuration_needs_a_run_with_one(
    refused: Refused, tmp_path: Path
) -> None:
    message = refused("serve", "reward", "--run-folder", tmp_path)
    assert f"{tmp_path} holds no context.json" in message
    RunContext("sums-1", tmp_path, f"sqlite:{tmp_path / 'store.sqlite'}").write()
    message = refused("serve", "reward", "--run-folder", tmp_path)
    assert "run sums-1: its store" in message and "holds no configuration" in message


def test_ctrl_c_before_anything_is_started(
    write_run: WriteRun, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("commands.cli.serve.launch.check_run", interrupted)
    assert ran(["train", str(write_run())], 130).err == "stopped\n"


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ("model.path=nowhere", "model.path"),
        ("model.path=hollow", "config.json"),
        ("data.train=nowhere.jsonl", "nowhere.jsonl: no such dataset"),
        ("data.validation=hollow.jsonl", "hollow.jsonl: holds no rows"),
        ("data.train=words.jsonl", "words.jsonl:1: reward.rules.last_integer cannot use this row"),
        ("data.answer_key=level", "train.jsonl:1"),
        ("run.folder=hollow.jsonl", "run.folder"),
        ("run.step=3", "did you mean run.steps?"),
        ("run.steps=0 rollout.replicas=none", "run.yaml: rollout.replicas"),
        ("rollout.tensor_parallel=2", "rollout.tensor_parallel: 2 does not divide"),
        ("trainer.tensor_parallel=2", "trainer.tensor_parallel: 2 does not divide"),
        ("trainer.load=first", "first is no checkpoint and holds none"),
        ("rollout.max_tokens=8000", "rollout.max_prompt_tokens + rollout.max_tokens: 9024"),
        ("endpoints.reward=10.0.0.1:7000", "endpoints.reward: 10.0.0.1:7000"),
        ("algorithm.updates_per_batch=9", "must not be more than run.groups_per_step (8)"),
    ],
)
def test_what_is_wrong_with_a_run_is_named_before_anything_starts(
    words: str, reported: str, write_run: WriteRun, refused: Refused, tmp_path: Path
) -> None:
    (tmp_path / "hollow").mkdir()
    (tmp_path / "hollow.jsonl").write_text("\n")
    (tmp_path / "words.jsonl").write_text('{"prompt": "1 + 1?", "answer": "two"}\n')
    assert reported in refused("train", write_run(), *words.split())
