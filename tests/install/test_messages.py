"""What a machine lacks is said in one line, with the remedy and status 2."""

import shutil
from pathlib import Path

import pytest

from tests.install.indexes import Index, serving
from tests.install.machine import ROOT, Machine, says_one_line
from tests.install.wheels import make_wheel


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def nothing_was_installed(machine: Machine) -> bool:
    return not machine.env.exists()


@pytest.mark.parametrize("version", ["3.10", "3.14"])
def test_another_python(machine: Machine, version: str) -> None:
    machine.stub_python(f'case "$2" in *version_info*) echo {version}; exit;; esac')

    line = says_one_line(machine.install())
    assert "Python 3.11, 3.12 or 3.13 is needed" in line
    assert f"is {version}: set PYTHON=/path/to/python3.12" in line
    assert nothing_was_installed(machine)


def test_make_takes_the_same_python(machine: Machine) -> None:
    python = machine.stub("python", "echo 3.9")
    done = machine.run(
        "make", "-C", str(ROOT), "install", f"VENV={machine.env}", f"PYTHON={python}"
    )

    assert done.returncode == 2
    assert f"Python 3.11, 3.12 or 3.13 is needed and {python} is 3.9" in done.stderr
    assert nothing_was_installed(machine)


def test_no_python(machine: Machine) -> None:
    machine.variables["PYTHON"] = "/nowhere/python3"
    assert "/nowhere/python3 is not found" in says_one_line(machine.install())


def test_a_python_without_venv(machine: Machine) -> None:
    machine.stub_python('case "$2" in *ensurepip*) exit 1;; *version_info*) echo 3.12; exit;; esac')
    assert "apt install python3.12-venv" in says_one_line(machine.install())
    assert nothing_was_installed(machine)


def test_no_compiler(machine: Machine) -> None:
    tools = ("sh", "uname", "dirname", "mkdir", "awk", "grep", "tr", "tail")
    for tool in tools:
        found = shutil.which(tool)
        assert found
        (machine.stubs / tool).symlink_to(found)
    machine.variables["PATH"] = str(machine.stubs)

    assert "no C compiler" in says_one_line(machine.install())
    assert nothing_was_installed(machine)


@pytest.mark.parametrize(("says", "what"), [("echo 3.14", "3.14"), ("exit 1", "gone")])
def test_an_environment_of_another_python(machine: Machine, says: str, what: str) -> None:
    (machine.env / "bin").mkdir(parents=True)
    (machine.env / "bin/python").symlink_to(machine.stub("old", says))
    line = says_one_line(machine.install())
    assert f"that of {machine.env} is {what}: remove {machine.env}" in line


def test_no_headers_of_python(machine: Machine) -> None:
    machine.stub_python('case "$2" in *sysconfig*) echo /nowhere; exit;; esac')
    assert "Python's headers are not in /nowhere" in says_one_line(machine.install())
    assert nothing_was_installed(machine)


def test_too_little_disk(machine: Machine) -> None:
    machine.stub("df", f"echo header; echo / 0 0 {2 * 10**6} 0% /")
    line = says_one_line(machine.install())
    assert f"4 GB of disk are needed for {machine.env} and 2 GB are free" in line
    assert nothing_was_installed(machine)


def test_a_disk_that_fills_up(machine: Machine) -> None:
    """A real one: df promised more."""
    wheels = machine.home / "wheels"
    make_wheel(wheels, "torch", "2.13.0", (), f"large = {'x' * 4_000_000!r}")
    machine.make_environment()
    full = machine.home / "work" / "full"
    full.mkdir()
    machine.stub(
        "on-a-full-disk",
        f"mount -t tmpfs -o size=1m tmpfs {full} || exit 77\n"
        f"cp -a {machine.env}/. {full} && exec sh requirements/install.sh {full} cpu",
    )
    with serving(Index, wheels) as index:
        machine.variables["UV_DEFAULT_INDEX"] = index.url
        done = machine.run("unshare", "--user", "--map-root-user", "--mount", "on-a-full-disk")
    if "unshare" in done.stderr or done.returncode == 77:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")

    assert done.returncode == 2
    _, line = done.stderr.splitlines()  # the first says where torch comes from
    assert line.startswith("The disk is full: free 4 GB")


def test_no_network_for_pip(machine: Machine) -> None:
    machine.variables["PIP_INDEX_URL"] = machine.variables["UV_DEFAULT_INDEX"]
    line = says_one_line(machine.install())
    assert line.startswith("The Python package index cannot be reached")
    assert "Connection refused" in line


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ("Darwin arm64", "run it in a Linux container or virtual machine"),
        ("Linux riscv64", "needs x86_64 or aarch64 and this is riscv64"),
    ],
)
def test_another_system(machine: Machine, system: str, message: str) -> None:
    name, processor = system.split()
    machine.stub("uname", f'case "$1" in -s) echo {name};; -m) echo {processor};; esac')
    assert message in says_one_line(machine.install())
    assert nothing_was_installed(machine)
