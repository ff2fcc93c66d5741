"""Memory that is not there is an error, and no process is killed for it."""

import os
import subprocess
import sys
import textwrap
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.weight_sync.ends import until
from trimaran.errors import TransferError
from weights.memory import free_memory as room
from weights.memory.free_memory import MARGIN_BYTES, find_free_memory, require_free_memory
from weights.memory.host_memory import TAKEN_AT_A_TIME, HostMemory

MIB = 2**20
LIMIT = 320 * MIB
LONG = 60


@pytest.fixture
def cgroup():
    """The folder of a cgroup of our own with LIMIT."""
    for folder in room._cgroups(Path("/proc")):
        group = folder / f"trimaran-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / "memory.max").write_text(str(LIMIT))
        except OSError:
            group.rmdir()
            continue
        yield group
        until(partial(is_removed, group))
        return
    pytest.skip("needs root, and a machine that lets it make a memory cgroup")


def is_removed(group):
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


IN_CGROUP = """
    import sys
    from weights.memory.host_memory import HostMemory
    from trimaran.errors import TransferError
    MIB = 2**20
    with open(sys.argv[1] + "/cgroup.procs", "w") as file:
        file.write("0")  # only now: what the imports need is not counted
"""


def run_in(group, text):
    """What the script prints; a killed one fails the test."""
    script = textwrap.dedent(IN_CGROUP) + textwrap.dedent(text)
    command = [sys.executable, "-c", script, str(group)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout


@pytest.mark.e2e
def test_a_version_larger_than_the_cgroup_is_refused_and_a_smaller_one_taken(cgroup):
    printed = run_in(
        cgroup,
        """
        try:
            HostMemory(512 * MIB)
        except TransferError as error:
            print(error)
        for _ in range(3):  # one after the other
            memory = HostMemory(128 * MIB)
            memory.buffer.fill_(7)
            del memory
        print("lives")
        """,
    )
    refused, lives = printed.splitlines()
    assert refused.startswith("no room for 513 MiB of weights on the host: ")
    assert refused.endswith(f"MiB are left in the cgroup {cgroup}")
    assert lives == "lives"


@pytest.mark.e2e
def test_memory_that_others_take_meanwhile_is_missed_in_time(cgroup):
    printed = run_in(
        cgroup,
        """
        hogs = []

        def take():
            if len(hogs) < 2:
                hogs.append(bytearray(60 * MIB))

        try:
            HostMemory(192 * MIB, take)
        except TransferError as error:
            print(error)
        """,
    )
    assert printed.startswith("no room for")


@pytest.mark.e2e
def test_what_the_page_cache_holds_is_room(cgroup, tmp_path):
    """A model that was read from a disk fills the cgroup with pages that the kernel gives back."""
    file = tmp_path / "model"
    with file.open("wb", buffering=0) as written:
        for _ in range(300):
            written.write(bytes(MIB))
        os.fsync(written)
        os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    printed = run_in(
        cgroup,
        f"""
        with open({str(file)!r}, "rb") as model:
            while model.read(MIB):
                pass
        HostMemory(200 * MIB).buffer.fill_(1)
        print("taken")
        """,
    )
    assert printed == "taken\n"


def found_in(folder, mount, group):
    """By a process of that group, of which the files lie as `mount` says."""
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemAvailable: 1048576 kB\nSwapFree: 1024 kB\n")
    (proc / "self/cgroup").write_text(group)
    (proc / "self/mountinfo").write_text(f"30 23 0:26 {mount}\n")
    found = find_free_memory(proc)
    return found.num_bytes, found.where


def make_group(folder, limit, used, stat=""):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


def test_the_narrowest_group_above_counts(tmp_path):
    top = tmp_path / "cgroup"
    stat = f"anon 5\ninactive_file {6 * MIB}\nactive_file {5 * MIB}\nfile_dirty {3 * MIB}\n"
    make_group(top / "pod", 100 * MIB, 70 * MIB, stat)
    make_group(top / "pod/app", "max", 5, stat)
    mount = f"/ {top} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
    found = found_in(tmp_path, mount, "0::/pod/app\n")
    assert found == ((100 - 70 + 6 + 5 - 3) * MIB, f"the cgroup {top}/pod")


def test_a_container_that_sees_its_group_as_the_root(tmp_path):
    top = tmp_path / "memory"
    make_group(top, 50 * MIB, 60 * MIB)
    mount = f"/docker/0123 {top} rw - cgroup2 cgroup rw"
    found = found_in(tmp_path, mount, "0::/docker/0123\n")
    assert found == (-10 * MIB, f"the cgroup {top}")


@pytest.mark.parametrize("group", ["", "0::/gone\n", "4:memory:/\n"])
def test_without_a_limit_the_machine_counts(tmp_path, group):
    make_group(tmp_path / "memory", "max", 0)
    mount = f"/ {tmp_path}/memory rw - cgroup2 cgroup rw"
    assert found_in(tmp_path, mount, group) == ((1 << 30) + MIB, "this machine")


def test_more_than_the_machine_has_is_refused(monkeypatch):
    with pytest.raises(TransferError, match=r"no room for \d+ MiB of it on the host: \d+ MiB"):
        require_free_memory(1 << 60, "it")
    require_free_memory(0, "it")
    full = room.FreeMemory(MARGIN_BYTES + MIB, "this machine")
    monkeypatch.setattr(room, "find_free_memory", lambda: full)
    HostMemory(MIB // 2)
    with pytest.raises(TransferError, match="no room for 2 MiB of weights .* 65 MiB are left"):
        HostMemory(2 * MIB)


def test_an_allocation_is_given_up_when_its_stage_is():
    descriptors = os.listdir("/proc/self/fd")
    left = iter([1])

    def check():
        if next(left, None) is None:
            raise TransferError("given up")

    with pytest.raises(TransferError, match="given up"):
        HostMemory(3 * TAKEN_AT_A_TIME, check)
    assert os.listdir("/proc/self/fd") == descriptors
