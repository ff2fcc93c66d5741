"""`AsyncRunClient` and `RunClient` against a manager without stores or processes."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.certificates import Authority
from tests.clients.fake_manager import FakeManager, ThreadedManager, managing, serve
from trimaran import AsyncRunClient, RunClient
from trimaran.clients.access import Access
from trimaran.config import load_config, parse_config
from trimaran.errors import (
    DeadlineError,
    InputError,
    NotFoundError,
    UnavailableError,
    UnreachableError,
)
from trimaran.run.runs import EventKind, RunState
from trimaran.trust.access import LOCAL, TlsFiles, Trust

TREE = {
    "model": {"path": "model"},
    "data": {"train": "train.jsonl"},
    "reward": {"rules": {"last_integer": 1.0, "style": {"function": "style.py:score"}}},
}


QUIET: Any = {"quiet_timeout": 0.2}


@pytest.fixture
def manager() -> Generator[ThreadedManager]:
    with managing() as manager:
        yield manager


@pytest.fixture
def client(manager: ThreadedManager) -> Generator[RunClient]:
    with RunClient(manager.address, timeout=20) as client:
        yield client


def test_a_run_from_submit_to_its_metrics(manager: ThreadedManager, client: RunClient) -> None:
    run = client.create_run(TREE, priority=3)
    assert (run.state, run.priority) == (RunState.QUEUED, 3)
    manager.do(manager.runs.step, run.run_id, 1, 0.25)
    manager.do(manager.runs.step, run.run_id, 2, 0.5)
    manager.after(0.2, manager.runs.finish, run.run_id)
    kinds = [event.kind for event in client.watch_run(run.run_id)]
    assert kinds == ["state", "step", "step", "finished"]
    assert client.wait_run(run.run_id, timeout=20).state is RunState.SUCCEEDED
    assert client.metrics(run.run_id) == [
        {"kind": "step", "step": 1, "time": 1002.0, "reward/completion/mean": 0.25},
        {"kind": "step", "step": 2, "time": 1003.0, "reward/completion/mean": 0.5},
    ]


def test_metrics_of_a_running_run_do_not_wait_for_its_end(
    manager: ThreadedManager, client: RunClient
) -> None:
    manager.do(manager.runs.add, "run")
    manager.do(manager.runs.step, "run", 1, 0.25)
    manager.do(manager.runs.step, "run", 1, 0.75)  # trained again after a resume
    [row] = client.metrics("run")
    assert row["reward/completion/mean"] == 0.75


def test_what_is_sent_does_not_depend_on_the_working_directory(
    manager: ThreadedManager, client: RunClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "somewhere").mkdir()
    path = tmp_path / "somewhere" / "run.yaml"
    path.write_text(yaml.safe_dump(TREE))
    monkeypatch.chdir(tmp_path)
    overrides = ["data.validation=held_out.jsonl", "run.seed=7"]
    run = client.create_run("somewhere/run.yaml", overrides)
    sent = yaml.safe_load(manager.runs.configs[run.run_id])
    assert sent["model"]["path"] == str(tmp_path / "somewhere/model")
    assert sent["data"]["validation"] == str(tmp_path / "held_out.jsonl")
    assert sent["reward"]["rules"]["style"]["function"] == f"{tmp_path}/somewhere/style.py:score"
    assert parse_config(sent) == load_config(path, overrides)
    of_mapping = client.create_run({**TREE, "model": {"path": Path("here")}})
    sent = yaml.safe_load(manager.runs.configs[of_mapping.run_id])
    assert sent["model"]["path"] == str(tmp_path / "here")
    of_config = client.create_run(load_config(path), ["run.steps=5"])
    sent = yaml.safe_load(manager.runs.configs[of_config.run_id])
    assert parse_config(sent) == load_config(path, ["run.steps=5"])


def test_a_lost_answer_makes_no_second_run(manager: ThreadedManager, client: RunClient) -> None:
    manager.manager.failures["CreateRun"] = 2
    run = client.create_run(TREE)
    assert list(manager.runs.runs) == [run.run_id]
    assert manager.manager.num_calls["CreateRun"] == 3
    assert client.create_run(TREE, request_id="mine") == client.create_run(TREE, request_id="mine")
    assert len(manager.runs.runs) == 2


def test_every_page_is_read(manager: ThreadedManager, client: RunClient) -> None:
    for number in range(5):
        state = RunState.RUNNING if number % 2 else RunState.PAUSED
        manager.do(manager.runs.add, f"run-{number}", state, owner="ada")
    assert [run.run_id for run in client.list_runs(page_size=2)] == [
        f"run-{number}" for number in (4, 3, 2, 1, 0)
    ]
    paused = client.list_runs(["paused"], owner="ada")
    assert [run.run_id for run in paused] == ["run-4", "run-2", "run-0"]
    assert not list(client.list_runs([RunState.FAILED]))


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("max_replicas", lambda client: client.scale_run("run", 1, 99999999999)),
        ("group", lambda client: client.get_ledger("run", -(2**70))),
        ("after_sequence", lambda client: next(iter(client.watch_run("run", 2**70)))),
    ],
)
def test_a_number_that_no_field_holds_is_bad_input(
    client: RunClient, field: str, call: Callable[[RunClient], Any]
) -> None:
    with pytest.raises(InputError, match=f"^{field}: -?[0-9]+ cannot be sent"):
        call(client)


def test_what_a_run_has_made(manager: ThreadedManager, client: RunClient) -> None:
    manager.do(manager.runs.add, "run")
    assert client.get_run("run").reward is None
    manager.do(manager.runs.tell, "run", EventKind.STATE, reward=0.25)
    assert client.get_run("run").reward == 0.25
    assert client.get_config("run")["trainer"] == {"learning_rate": 1e-5}
    [checkpoint] = client.list_checkpoints("run")
    assert (checkpoint.step, checkpoint.kept) == (2, True)
    samples = client.get_samples("run", trained_step=2, limit=5)
    assert manager.runs.calls[-1] == ("samples", LOCAL, "run", None, 2, 5, 0)
    assert samples.validation_steps == (0, 2)
    assert [sample.fault for sample in samples.samples] == ["", "worker gone"]
    assert samples.samples[0].terms == {"last_integer": 1.0}
    assert list(client.get_logs("run", "rollout-0", 2)) == [
        "line 0 of rollout-0",
        "line 1 of rollout-0",
    ]
    assert client.list_logs("run") == ("controller", "rollout-0")
    with pytest.raises(NotFoundError, match="there is no run 'other'"):
        client.get_run("other")
    assert client.get_ledger("run", group=0).facts == {"group": 0}
    assert not client.get_ledger("run").sound


def start_again(manager: ThreadedManager) -> None:
    """After a while; the run then ends."""
    time.sleep(0.5)
    manager.start()
    manager.do(manager.runs.finish, "run")


def test_a_followed_log_survives_breaks_and_a_restart(
    manager: ThreadedManager, client: RunClient
) -> None:
    """No line is lost and none comes twice, also of those that were written meanwhile."""
    manager.do(manager.runs.add, "run")
    manager.manager.break_behind = 4
    seen: list[str] = []
    for line in client.get_logs("run", lines=3, follow=True, outage_timeout=60):
        seen.append(line)
        if line == "line 2 of launcher":
            manager.do(manager.runs.log, "launcher", "before the break")
        elif line == "before the break":
            manager.do(manager.runs.log, "launcher", "before the restart")
        elif line == "before the restart":
            manager.stop()
            manager.do(manager.runs.log, "launcher", "while nobody answered")
            threading.Thread(target=start_again, args=(manager,)).start()
    assert seen == [
        *(f"line {number} of launcher" for number in range(3)),
        *("before the break", "before the restart", "while nobody answered", "now succeeded"),
    ]


def test_a_watch_survives_breaks_and_a_restart(manager: ThreadedManager, client: RunClient) -> None:
    manager.do(manager.runs.add, "run")
    for step in (1, 2, 3):
        manager.do(manager.runs.step, "run", step, 0.5)
    manager.manager.break_behind = 2
    seen: list[int] = []
    for event in client.watch_run("run", outage_timeout=60):
        seen.append(event.sequence)
        if event.sequence == 4:
            manager.stop()
            threading.Thread(target=start_again, args=(manager,)).start()
    assert seen == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("follow", "seen"),
    [
        (lambda client: [event.sequence for event in client.watch_run("run", **QUIET)], [1, 2]),
        (
            lambda client: list(client.get_logs("run", lines=1, follow=True, **QUIET)),
            ["line 0 of launcher", "now succeeded"],
        ),
    ],
    ids=["watch", "log"],
)
def test_a_quiet_run_is_followed_on(
    manager: ThreadedManager, client: RunClient, follow: Callable[[RunClient], Any], seen: Any
) -> None:
    manager.do(manager.runs.add, "run")
    manager.after(1.0, manager.runs.finish, "run")
    assert follow(client) == seen
    assert manager.manager.num_calls["GetRun"] >= 1


def test_an_ended_run_is_reported_whole_and_from_behind_its_end(
    manager: ThreadedManager, client: RunClient
) -> None:
    manager.do(manager.runs.add, "run")
    manager.do(manager.runs.finish, "run", RunState.CANCELLED)
    manager.do(manager.runs.tell, "run", EventKind.STATE, state=RunState.QUEUED)
    manager.do(manager.runs.finish, "run")
    assert [event.sequence for event in client.watch_run("run")] == [1, 2, 3, 4]
    assert not list(client.watch_run("run", after=4))


def test_waiting_has_an_end(manager: ThreadedManager, client: RunClient) -> None:
    manager.do(manager.runs.add, "run")
    with pytest.raises(DeadlineError, match=r"run: has not ended within 0.3 s"):
        client.wait_run("run", timeout=0.3)


async def test_a_failure_of_tls_names_the_certificate_and_not_a_missing_manager(
    tmp_path: Path,
) -> None:
    files = Authority("ours").write(tmp_path / "ours", addresses=("10.9.9.9",))
    other = Authority("other").write(tmp_path / "other")

    async def ask(address: str, ca: Path | None) -> str:
        async with AsyncRunClient(address, ca=ca, timeout=0.5) as client:
            with pytest.raises(UnreachableError) as caught:
                await client.get_run("run")
        return str(caught.value)

    trust = Trust(tls=TlsFiles(files.certificate, files.key))
    server = await serve(FakeManager(), trust=trust)
    reported = await ask(server.address, files.authorities)
    assert reported.endswith(
        ": its certificate is not for this name; ask it by a name that it holds"
    )
    reported = await ask(server.address, other.authorities)
    assert "signed by no authority that you trust" in reported
    assert "it closes the connection; where it speaks TLS" in await ask(server.address, None)
    await server.stop()
    server = await serve(FakeManager())
    assert "it does not speak TLS" in await ask(server.address, files.authorities)
    await server.stop()


def test_an_absent_manager_is_waited_for_no_longer_than_the_patience() -> None:
    """Of the minute that a call may take; who waits hears of it before."""
    reported: list[str] = []
    options = {"timeout": 60.0, "patience": 1.5, "on_wait": reported.append}
    began, gone = time.monotonic(), pytest.raises(UnreachableError)
    with RunClient("127.0.0.1:1", **options) as client, gone as caught:
        client.get_run("run")
    assert time.monotonic() - began < 45
    assert reported == ["127.0.0.1:1"]
    assert str(caught.value) == (
        "no manager answers at 127.0.0.1:1 (nothing listens there). One that was just started listens"
        " only once its predecessor's lease has ended, 10 s after a kill: ask again. Else start one"
        " with `trimaran up`, or name the address of one: --manager, TRIMARAN_MANAGER"
    )


def test_a_manager_that_is_started_again_is_waited_for(manager: ThreadedManager) -> None:
    manager.do(manager.runs.add, "run")
    manager.stop()
    threading.Timer(1.0, manager.start).start()
    with RunClient(manager.address, timeout=60, patience=30) as client:
        assert client.get_run("run").run_id == "run"


def test_a_manager_whose_store_is_away_says_it_itself(manager: ThreadedManager) -> None:
    """It is no manager that does not answer, and who asks has the patience of the whole call."""
    manager.manager.failures["GetRun"] = 10**6
    manager.do(manager.runs.add, "run")
    reported = pytest.raises(UnavailableError, match="^the answer was lost$")
    with RunClient(manager.address, timeout=1.0, patience=0.0) as client, reported:
        client.get_run("run")
    assert manager.manager.num_calls["GetRun"] > 1


def test_an_address_that_swallows_everything_counts_as_absent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # it accepts, and says nothing
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        reported = pytest.raises(UnreachableError, match=f"at {address} .no connection within 1 s")
        with RunClient(address, timeout=1.0) as client, reported:
            client.get_run("run")


@pytest.fixture
def token(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("secret" * 5 + "\n")
    (tmp_path / "token").chmod(0o600)
    return tmp_path / "token"


def test_the_token_travels_with_every_call(manager: ThreadedManager, token: Path) -> None:
    manager.do(manager.runs.add, "run")
    with RunClient(manager.address, token=token) as client:
        client.get_run("run")
        list(client.watch_run("run", until_now=True))
    assert manager.manager.tokens == ["Bearer " + "secret" * 5] * 2


def test_access_comes_from_the_environment(tmp_path: Path, token: Path) -> None:
    files = {
        "TRIMARAN_MANAGER": "10.0.0.7:7900",
        "TRIMARAN_TOKEN_FILE": str(token),
        "TRIMARAN_CA": str(tmp_path / "ca.pem"),
    }
    trust = Trust("secret" * 5, TlsFiles(authorities=tmp_path / "ca.pem"))
    assert Access.find(None, None, None, files) == Access("10.0.0.7:7900", trust)
    mine = Trust("mine" * 5)
    assert Access.find("localhost:1", "mine" * 5, None, {}) == Access("localhost:1", mine)
    assert Access.find(None, None, None, {}) == Access("127.0.0.1:7900")
    own = {"TRIMARAN_CERTIFICATE": "cert.pem", "TRIMARAN_KEY": "key.pem"}
    tls = TlsFiles(Path("cert.pem"), Path("key.pem"))
    assert Access.find(None, None, None, own) == Access("127.0.0.1:7900", Trust(tls=tls))
    with pytest.raises(InputError, match="is beyond loopback"):
        Access.find("10.0.0.7:7900", "secret" * 5, None, {})
    Access.find("10.0.0.7:7900", "secret" * 5, None, {"TRIMARAN_NETWORK": "trusted"})
    with pytest.raises(InputError, match="cannot be read"):
        Access.find(None, tmp_path / "nothing", None, {})
    with pytest.raises(InputError, match="16 to 256 characters"):
        Access.find(None, "two words", None, {})


def test_a_closed_client_says_so(manager: ThreadedManager) -> None:
    client = RunClient(manager.address)
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.get_run("run")


def test_an_iterator_that_is_left_ends_its_call(
    manager: ThreadedManager, client: RunClient
) -> None:
    manager.do(manager.runs.add, "run")
    watching = client.watch_run("run")
    assert next(watching).sequence == 1
    del watching
    manager.do(manager.runs.finish, "run")
    assert client.get_run("run").state is RunState.SUCCEEDED


def test_to_import_trimaran_is_cheap() -> None:
    code = """
import sys, trimaran
heavy = {"grpc", "pydantic", "yaml", "asyncio", "google.protobuf"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
trimaran.RunState
assert "grpc" not in sys.modules
trimaran.RunClient
assert "grpc" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_metrics_whose_first_rows_are_gone_come_with_a_warning(
    manager: ThreadedManager, client: RunClient, caplog: pytest.LogCaptureFixture
) -> None:
    manager.do(manager.runs.add, "run")
    gone = "events up to 6 are not kept any more"
    manager.do(manager.runs.tell, "run", EventKind.MISSED, text=gone)
    manager.do(manager.runs.step, "run", 7, 0.25)
    assert [row["step"] for row in client.metrics("run")] == [7]
    assert f"run run: {gone}" in caplog.text
