"""The commands that speak to a manager."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Generator
from pathlib import Path

import pytest
import yaml

from commands.cli.main import main
from commands.cli.manage.samples_view import describe_sample
from services.manager.viewing.recorded import LAPSE_SECONDS
from tests.cli.conftest import Ran, WriteRun
from tests.cli.train.test_progress import STEP
from tests.clients.fake_manager import ThreadedManager, managing
from tests.manager.viewing.folders import config_of, contents, launched, make_run
from trimaran.run.answers import RunSample
from trimaran.run.context import RunContext
from trimaran.run.runs import EventKind, RunState
from trimaran.trust.access import LOCAL

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Generator[ThreadedManager]:
    with managing() as manager:
        monkeypatch.setenv("TRIMARAN_MANAGER", manager.address)
        yield manager


def test_submit_queues_a_run_and_says_how_to_see_it(
    manager: ThreadedManager, write_run: WriteRun, ran: Ran
) -> None:
    path = write_run()
    out = ran(["submit", str(path), "run.seed=2", "--priority", "3", "run.steps=5"]).out
    assert out == "run-1: queued\nsee it with: trimaran watch run-1\n"
    sent = yaml.safe_load(manager.runs.configs["run-1"])
    assert sent["run"] == {"seed": 2, "steps": 5}
    assert sent["model"]["path"] == str(path.parent / "model")
    assert manager.runs.runs["run-1"].priority == 3


@pytest.mark.parametrize(
    ("state", "code"), [(RunState.SUCCEEDED, 0), (RunState.FAILED, 1), (RunState.CANCELLED, 0)]
)
def test_watch_shows_what_train_shows_and_ends_as_the_run_did(
    manager: ThreadedManager, ran: Ran, state: RunState, code: int
) -> None:
    manager.do(manager.runs.add, "run")
    manager.do(manager.runs.tell, "run", EventKind.STEP, STEP, step=1)
    remedy = "raise reward.pause_timeout" if code else ""
    manager.do(manager.runs.finish, "run", state, remedy=remedy)
    out = ran(["watch", "latest"], code).out
    assert "step 1/4  reward 0.250  length 21.5" in out
    assert f"run: {state.value} after step 1 of 4" in out
    assert ("what to do: raise reward.pause_timeout" in out) == bool(code)
    assert "reward" not in ran(["watch", "run", "--after", "2"], code).out.partition("\n")[0]


def test_submit_and_watch(manager: ThreadedManager, write_run: WriteRun, ran: Ran) -> None:
    def finish_when_there() -> None:
        if "run-1" in manager.runs.runs:
            manager.runs.finish("run-1")
        else:
            manager.after(0.1, finish_when_there)

    manager.after(0.1, finish_when_there)
    assert "run-1: succeeded" in ran(["submit", str(write_run()), "--watch"]).out


def test_runs_are_listed_for_people_and_machines(manager: ThreadedManager, ran: Ran) -> None:
    assert "trimaran submit" in ran(["list"]).out
    facts = {"error": "the [disk] is full", "reward": 0.25, "created_at": time.time() - 3 * 3600}
    going = {"held_out": 0.5, "devices": 4, "ends_at": time.time() + 1000, "doing": "validating"}
    manager.do(manager.runs.add, "old", RunState.FAILED, owner="ada", **facts)
    manager.do(manager.runs.add, "new", RunState.QUEUED, waiting_for="2 devices of h100")
    lines = ran(["list"]).out.splitlines()
    assert lines[0].split()[:5] == ["run", "state", "step", "reward", "age"]
    assert lines[1].startswith("new") and lines[1].endswith("  2 devices of h100")
    assert lines[2].startswith("old") and lines[2].endswith("  the [disk] is full")
    assert lines[2].split()[:5] == ["old", "failed", "0/4", "0.250", "3h"]
    manager.do(manager.runs.add, "going", RunState.RUNNING, **going)
    heading, row, *_ = ran(["list"]).out.splitlines()
    assert heading.split()[:6] == ["run", "state", "step", "left", "reward", "held-out"]
    at = heading.index("left")
    assert row[at : at + 3] == "16:" and " 0.500 " in row
    assert row[heading.index("devices") :].startswith("4") and row.endswith("  validating")
    [run] = json.loads(ran(["list", "--state", "failed", "--owner", "ada", "--json"]).out)
    assert (run["run_id"], run["state"], run["error"]) == ("old", "failed", "the [disk] is full")
    assert "give one of queued, starting, running" in ran(["list", "--state", "sleeping"], 2).err


def test_a_narrow_terminal_cuts_no_id(
    manager: ThreadedManager, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    run_id = "a-long-name-of-a-run-20261122-122421"
    manager.do(manager.runs.add, run_id)
    assert ran(["list"]).out.splitlines()[1].split()[:2] == [run_id, "running"]


def test_a_run_is_named_by_its_beginning_or_as_the_latest(
    manager: ThreadedManager, ran: Ran
) -> None:
    for run_id in ("addition-1", "addition-12", "gsm8k-1"):
        manager.do(manager.runs.add, run_id)
    for text, found in (
        ("addition-1", "addition-1"),
        ("addition-12", "addition-12"),
        ("gs", "gsm8k-1"),
        ("latest", "gsm8k-1"),
    ):
        assert ran(["show", text]).out.splitlines()[0] == found
    assert "add: begins several runs: addition-12, addition-1" in ran(["show", "add"], 2).err
    assert "8k: not a run" in ran(["show", "8k"], 2).err
    assert "x: not a run of this manager: gsm8k-1, addition-12" in ran(["show", "x"], 2).err


def test_show_says_how_a_run_stands(manager: ThreadedManager, ran: Ran) -> None:
    facts = {"error": "no disk", "remedy": "make room", "folder": "/runs/run", "starts": 2}
    manager.do(manager.runs.add, "run", RunState.FAILED, started_at=1.0, **facts)
    out = ran(["show", "run"]).out
    for part in ("state         failed", "make room", "starts        2", "checkpoints/2 (step 2)"):
        assert part in out
    told = json.loads(ran(["show", "run", "--json"]).out)
    assert told["checkpoints"] == [{"step": 2, "path": "/runs/run/checkpoints/2"}]
    assert told["remedy"] == "make room" and told["config"]["run"] == {"steps": 4}
    assert yaml.safe_load(ran(["show", "run", "--config"]).out)["run"] == {"steps": 4}


def test_runs_are_steered(manager: ThreadedManager, ran: Ran) -> None:
    manager.do(manager.runs.add, "run")
    assert main(["scale", "run", "2:8"]) == 0
    assert main(["scale", "run", "3"]) == 0
    assert manager.runs.calls[-1] == ("scale", LOCAL, "run", 3, 3)
    assert main(["scale", "run", "2:"]) == 2
    assert main(["scale", "run", "many"]) == 2
    assert main(["pause", "run"]) == 0
    assert main(["cancel", "latest"]) == 0
    assert "run is cancelling" in ran(["pause", "run"], 1).err
    assert "say --yes" in ran(["delete", "run"], 2).err
    assert main(["delete", "run", "--yes"]) == 1
    manager.do(manager.runs.finish, "run", RunState.CANCELLED)
    assert main(["resume", "run"]) == 0
    manager.do(manager.runs.finish, "run", RunState.CANCELLED)
    assert ran(["delete", "run", "--yes"]).out == "run: deleted\n"


def test_logs(manager: ThreadedManager, ran: Ran) -> None:
    manager.do(manager.runs.add, "run")
    out = ran(["logs", "run", "rollout-0", "-n", "2"]).out
    assert out == "line 0 of rollout-0\nline 1 of rollout-0\n"
    told = ran(["logs", "run"])
    assert told.out.startswith("line 0 of launcher\n")
    assert told.err == "the launcher's log; others: controller, rollout-0\n"
    manager.after(0.3, manager.runs.finish, "run")
    followed = ran(["logs", "run", "rollout-0", "-f", "-n", "1"]).out
    assert followed.endswith("now succeeded\n"), "up to the end of the run, whenever that comes"


def test_samples(manager: ThreadedManager, ran: Ran) -> None:
    manager.do(manager.runs.add, "run")
    out = ran(["samples", "run", "2", "--trained", "-n", "5"]).out
    assert manager.runs.calls[-1] == ("samples", LOCAL, "run", None, 2, 5, 0)
    assert "rows:1  reward 1 (last_integer 1)\n  prompt:    What is 2 + 3?" in out
    assert "rows:2  no reward: worker gone" in out
    assert "answer:    [two]" in out
    assert "2 of 2 samples of the trained step 2\n" in out
    assert json.loads(ran(["samples", "run", "0", "--json"]).out)["validation_steps"] == [0, 2]
    assert manager.runs.calls[-1] == ("samples", LOCAL, "run", 0, None, 5, 0)
    assert main(["samples", "run", "--trained"]) == 0
    assert manager.runs.calls[-1] == ("samples", LOCAL, "run", None, 2, 5, 0), "the last one"
    assert main(["samples", "run", "--step", "1", "--trained"]) == 0
    assert manager.runs.calls[-1] == ("samples", LOCAL, "run", None, 1, 5, 0)


def test_samples_of_steps_that_are_not_kept(manager: ThreadedManager, ran: Ran) -> None:
    """Those of a run that has ended do not come any more."""
    manager.runs.trained_steps = ()
    manager.do(manager.runs.add, "run")
    assert ran(["samples", "run", "--trained"], 2).err == "error: run: no step has been trained\n"
    manager.do(manager.runs.step, "run", 2, 0.5)
    manager.do(manager.runs.finish, "run")
    err = ran(["samples", "run", "--trained"], 2).err
    assert "what its 2 steps trained on is not kept; run.keep_payloads=all keeps it" in err


def test_few_samples_are_shown_cut_short_and_all_of_them_where_it_is_asked(
    manager: ThreadedManager, ran: Ran
) -> None:
    """512 answers of 8k tokens are 16 MB: nobody reads them on a terminal."""
    long = "\n".join(f"line {number} " + "x" * 80 for number in range(400))
    many = tuple(RunSample(f"rows:{number}", "?", long, "5", 1.0) for number in range(1200))
    manager.runs.more_samples = many
    manager.do(manager.runs.add, "run")
    out = ran(["samples", "run"]).out
    assert out.count("  prompt:") == 5 and len(out) < 10_000
    assert "5 of 1202 samples of the validation after step 2; more: -n N, or --all" in out
    assert "more characters: --full]" in out
    out = ran(["samples", "run", "-n", "4", "--full"]).out
    assert out.count("line 399 ") == 2 and "--full" not in out
    manager.runs.calls.clear()
    out = ran(["samples", "run", "--all"]).out
    assert out.count("  prompt:") == 1202 and "1202 of 1202 samples" in out
    asked = [call[-2:] for call in manager.runs.calls if call[0] == "samples"]
    assert asked == [(500, 0), (500, 500), (500, 1000)]
    assert len(json.loads(ran(["samples", "run", "--all", "--json"]).out)["samples"]) == 1202


def test_what_others_wrote_does_nothing_to_a_terminal(
    manager: ThreadedManager, capsys: Capture
) -> None:
    sample = RunSample("p", "\x1b[2J名\u3000?", "a\tb\x9b31m", "", 1.0, {}, "")
    assert "\n".join(describe_sample(sample, full=True)).splitlines()[1:3] == [
        "  prompt:    \\x1b[2J名\u3000?",
        "  answer:    a\tb\\x9b31m",
    ]
    manager.do(manager.runs.add, "run")
    text = "\x1b]0;title\x07 it died"
    manager.do(manager.runs.finish, "run", RunState.FAILED, error=text, remedy=text)
    for command in (["list"], ["show", "run"], ["watch", "run"]):
        main(command)
        shown = capsys.readouterr().out
        assert "\\x1b]0;title\\x07 it died" in shown
        assert "\x1b" not in shown


def test_without_a_manager_a_command_says_whom_it_waits_for_and_what_to_do(ran: Ran) -> None:
    waits, ends = ran(["list", "--manager", "127.0.0.1:1"], 1).err.splitlines()
    assert waits == "waiting for the manager at 127.0.0.1:1 ..."
    assert ends.startswith(
        "error: no manager answers at 127.0.0.1:1 (nothing listens there). One that was just started"
    )
    assert "trimaran up" in ends and "ipv4" not in ends


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a run without a manager, which nobody could ask."""
    monkeypatch.setenv("TRIMARAN_MANAGER", "127.0.0.1:1")
    folder = make_run(tmp_path / "addition", config_of(tmp_path), age=2 * LAPSE_SECONDS).folder
    (folder / "samples").mkdir()
    (folder / "logs" / "rollout-0.log").write_text("one\ntwo\nthree\n")
    row = {
        "prompt": "What is 2 + 3?",
        "answer": "5",
        "greedy_completions": ["5"],
        "greedy_rewards": [1.0],
        "completions": ["six", "5"],
        "rewards": [None, 1.0],
    }
    (folder / "samples" / "step-00005.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def test_the_folder_of_a_run_without_a_manager_is_shown(folder: Path, ran: Ran) -> None:
    run = RunContext.in_folder(folder)

    async def record() -> None:
        async with launched(run, config_of(folder.parent)) as processes:
            await processes.take_lease()
            await processes.report(RunState.RUNNING, 3, held="the disk is full")

    asyncio.run(record())
    before = contents(folder)
    out = ran(["show", str(folder)]).out
    assert "step          3 of 20" in out and "held          the disk is full" in out
    shown = json.loads(ran(["show", str(folder), "--json"]).out)
    assert (shown["state"], shown["config"]["run"]["name"]) == ("running", "demo")
    assert contents(folder) == before

    async def end() -> None:
        async with launched(run, config_of(folder.parent)) as processes:
            await processes.report(RunState.FAILED, 4, error="no disk")

    asyncio.run(end())
    assert "addition: failed after step 4 of 20" in ran(["watch", str(folder)], 1).out


def test_logs_and_samples_of_a_folder(folder: Path, ran: Ran) -> None:
    assert ran(["logs", str(folder), "rollout-0", "-n", "2"]).out == "two\nthree\n"
    assert "those that have: rollout-0" in ran(["logs", str(folder), "trainer-0"], 1).err
    out = ran(["samples", str(folder)]).out
    assert out.count("reward 1\n") == 2 and out.count("no reward: it could not be scored") == 1
    assert "3 of 3 samples of the validation after step 5\nvalidations after steps" in out
    assert "those that have: 5" in ran(["samples", str(folder), "7"], 1).err
    assert "no step has been trained" in ran(["samples", str(folder), "--trained"], 2).err
