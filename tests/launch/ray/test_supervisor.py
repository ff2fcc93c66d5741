"""What an actor does on its node: real processes, without Ray."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from commands.launch.ray.supervisor import LOG_BYTES, Supervisor, SupervisorReport
from tests.launch.services import STAND_IN, is_alive, pid_of, wait_until


@pytest.fixture
def supervisors() -> Generator[list[Supervisor]]:
    made: list[Supervisor] = []
    yield made
    for supervisor in made:
        supervisor.close()


def order(folder: Path, what: str = "run", **given: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    arguments = (str(STAND_IN), what, str(folder / "reward"))
    return {"name": "reward", "arguments": arguments, "folder": str(folder)} | given


def supervise(made: list[Supervisor], given: dict[str, Any], **how: Any) -> Supervisor:
    # As it stands, it would end the process of the tests after its lapse.
    supervisor = Supervisor(**{"leave": lambda: None, **how})
    made.append(supervisor)
    supervisor.start(given)
    return supervisor


def report(supervisor: Supervisor, position: int = -1) -> SupervisorReport:
    return SupervisorReport(**supervisor.report(position))


def ended(supervisor: Supervisor) -> SupervisorReport:
    wait_until(lambda: report(supervisor).pid == 0, "its end")
    return report(supervisor)


def test_a_long_log_comes_in_parts(tmp_path: Path, supervisors: list[Supervisor]) -> None:
    supervisor = supervise(supervisors, order(tmp_path / "run"))
    with (tmp_path / "run" / "logs" / "reward.log").open("ab") as log:
        log.write(b"x" * (LOG_BYTES + 7))
    first = report(supervisor)
    assert len(first.log) == LOG_BYTES
    assert len(report(supervisor, first.position).log) == 7


def test_a_log_that_was_shortened_is_carried_on_from_its_start(
    tmp_path: Path, supervisors: list[Supervisor]
) -> None:
    supervisor = supervise(supervisors, order(tmp_path / "run"))
    log = tmp_path / "run" / "logs" / "reward.log"
    log.write_bytes(b"x" * 100)
    position = report(supervisor, 0).position
    assert position == 100
    log.write_bytes(b"new\n")
    after = report(supervisor, position)
    assert (after.log, after.position) == (b"new\n", 4)


def test_secrets_lie_in_files_that_only_we_read(
    tmp_path: Path, supervisors: list[Supervisor]
) -> None:
    given = order(tmp_path / "run", files={"token": "s3cret-s3cret"}, variables={"PLUGIN": "p1"})
    supervisor = supervise(supervisors, given)
    path = tmp_path / "run" / "token"
    assert path.read_text() == "s3cret-s3cret" and stat.S_IMODE(path.stat().st_mode) == 0o600
    process = Path(f"/proc/{report(supervisor).pid}")
    pid_of(tmp_path / "run" / "reward")
    assert b"PLUGIN=p1" in (process / "environ").read_bytes()
    for shown in ("environ", "cmdline"):
        assert b"s3cret" not in (process / shown).read_bytes()


def test_the_devices_that_ray_gave_are_all_that_it_sees(
    tmp_path: Path, supervisors: list[Supervisor]
) -> None:
    given = order(tmp_path / "run", device="npu")
    supervisor = supervise(supervisors, given, find_devices=lambda kind: ("2", "3"))
    pid_of(tmp_path / "run" / "reward")
    environ = Path(f"/proc/{report(supervisor).pid}/environ").read_bytes().split(b"\0")
    assert b"ASCEND_RT_VISIBLE_DEVICES=2,3" in environ and b"TRIMARAN_PLACED=reward" in environ


def test_on_a_folder_that_all_see_no_log_is_carried(
    tmp_path: Path, supervisors: list[Supervisor]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "launcher-1").touch()
    given = order(folder, "die3", mark="launcher-1", files={"token": "x"}, unless_shared="one host")
    assert ended(supervise(supervisors, given)).log == b""
    assert not (folder / "token").exists()  # the launcher's own lies there
    with pytest.raises(OSError, match="one host"):
        supervise(supervisors, given | {"mark": "launcher-2"})


def test_a_frozen_service_is_seen_and_killed(tmp_path: Path, supervisors: list[Supervisor]) -> None:
    supervisor = supervise(supervisors, order(tmp_path / "run"))
    os.kill(pid_of(tmp_path / "run" / "reward"), signal.SIGSTOP)
    wait_until(lambda: report(supervisor).is_stopped, "the stop to be seen")
    supervisor.kill()
    assert ended(supervisor).code == -signal.SIGKILL


def test_when_nothing_asks_any_more_nothing_is_left(
    tmp_path: Path, supervisors: list[Supervisor]
) -> None:
    left = threading.Event()
    given = order(tmp_path / "run", "engine")
    supervisor = supervise(supervisors, given, lapse_seconds=1.5, leave=left.set)
    pid = pid_of(tmp_path / "run" / "reward")
    child = int((tmp_path / "run" / "reward-child").read_text())
    assert report(supervisor).pid == pid and not left.is_set()
    assert left.wait(30.0)
    assert not is_alive(pid)
    # It was killed; on a busy machine it takes a while to go.
    wait_until(lambda: not is_alive(child), "the end of what the service had started")
