"""Where torch comes from: local wheels, PyTorch's index, the general index."""

import shutil
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.install.indexes import PYTORCH, Index, Proxy, Server, make_certificate, serving
from tests.install.machine import ROOT, Machine
from tests.install.wheels import make_wheel

CPU_TORCH = "build = 'cpu'"
CUDA_TORCH = "import nvidia_cudnn_cu13\nbuild = 'cuda'"
CUDA_LIBRARIES = "nvidia-cudnn-cu13==9.20.0.48"


@pytest.fixture
def general(tmp_path: Path) -> Iterator[Server]:
    """The general index: its torch does not load without its CUDA libraries."""
    wheels = tmp_path / "general"
    make_wheel(wheels, "torch", "2.13.0", (CUDA_LIBRARIES,), CUDA_TORCH)
    make_wheel(wheels, "nvidia-cudnn-cu13", "9.20.0.48", (), "libraries = True")
    with serving(Index, wheels) as server:
        yield server


@pytest.fixture
def pytorch(tmp_path: Path) -> Iterator[Server]:
    """PyTorch's index, with the CPU build."""
    wheels = tmp_path / "pytorch"
    make_wheel(wheels, "torch", "2.13.0+cpu", (), CPU_TORCH)
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate of the index that stands for PyTorch's")
    with serving(Proxy, wheels) as server:
        server.certificate = make_certificate(tmp_path)
        yield server


@pytest.fixture
def machine(tmp_path: Path, general: Server, pytorch: Server) -> Machine:
    """Reaches both indexes and nothing else, and has no local wheels."""
    machine = Machine(tmp_path)
    machine.make_environment()
    machine.variables |= {
        "UV_DEFAULT_INDEX": f"{general.url}/simple",
        "UV_INSECURE_HOST": PYTORCH.partition(":")[0],
        "HTTPS_PROXY": pytorch.url,
        "NO_PROXY": "127.0.0.1",
    }
    return machine


def install(machine: Machine) -> str:
    """What a good installation said on standard error."""
    done = machine.install()
    assert done.returncode == 0, done.stderr
    return done.stderr


def build(machine: Machine) -> str:
    return machine.python("import torch; print(torch.build)")


def test_local_wheels_come_first_and_no_index_is_asked_for_torch(
    machine: Machine, tmp_path: Path, general: Server, pytorch: Server
) -> None:
    local = tmp_path / "local"
    make_wheel(local, "torch", "2.13.0+cpu", (), "build = 'local'")
    machine.variables["PIP_FIND_LINKS"] = str(local)

    assert install(machine) == ""
    assert build(machine) == "local"
    assert pytorch.asked == []


def test_a_lock_may_name_a_torch_of_its_own(machine: Machine, tmp_path: Path) -> None:
    """As vllm-0.23 does."""
    local = tmp_path / "local"
    for version in ("2.11.0", "2.13.0"):
        make_wheel(local, "torch", f"{version}+cpu", (), f"build = '{version}'")
    machine.variables["PIP_FIND_LINKS"] = str(local)
    (machine.requirements / "cpu-torch.txt").write_text("torch==2.11.0\n")

    assert install(machine) == ""
    assert build(machine) == "2.11.0"


@pytest.mark.parametrize("places", ["other", "missing"])
def test_local_wheels_without_torch_leave_it_to_pytorchs_index(
    machine: Machine, tmp_path: Path, places: str
) -> None:
    make_wheel(tmp_path / "other", "unrelated", "1.0")
    machine.variables["PIP_FIND_LINKS"] = str(tmp_path / places)

    assert install(machine) == ""
    assert build(machine) == "cpu"


def test_pytorchs_index_gives_the_cpu_build_where_there_are_no_local_wheels(
    machine: Machine, general: Server, pytorch: Server
) -> None:
    assert install(machine) == ""
    assert build(machine) == "cpu"
    assert set(pytorch.asked) >= {PYTORCH, "/whl/cpu/torch/"}
    assert not [path for path in general.asked if "torch" in path or "nvidia" in path]


def test_without_pytorchs_index_the_general_one_gives_torch_with_its_libraries_and_one_line_says_so(
    machine: Machine, pytorch: Server
) -> None:
    pytorch.folder = None

    (line,) = install(machine).splitlines()
    assert "CUDA build, with 3 GB of CUDA libraries" in line
    assert build(machine) == "cuda"


def test_a_whole_environment_stays_without_asking_where_torch_would_be(
    machine: Machine, pytorch: Server
) -> None:
    """`make` comes back to it after any change of the project's own file."""
    assert install(machine) == ""
    pytorch.folder = None
    machine.stub("df", f"echo header; echo / 0 0 {5 * 10**6} 0% /")
    pytorch.asked.clear()

    assert install(machine) == ""
    assert (build(machine), pytorch.asked) == ("cpu", [])


def test_a_disk_too_small_for_the_libraries_stops_before_they_are_fetched(
    machine: Machine, general: Server, pytorch: Server
) -> None:
    pytorch.folder = None
    machine.stub("df", f"echo header; echo / 0 0 {5 * 10**6} 0% /")

    done = machine.install()
    assert done.returncode == 2
    assert "5 GB are free" in done.stderr
    assert general.asked == []


def test_a_package_with_another_hash_than_the_lock_says_is_refused(
    machine: Machine, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "general", "helper", "1.0", (), "import nothing_good")
    machine.lock("helper", "1.0", "0" * 64)

    done = machine.install()
    assert done.returncode == 2
    assert "Hash mismatch for `helper==1.0`" in done.stderr
    assert "as the lines above say" in done.stderr.splitlines()[-1]


def documented(start: str) -> str:
    """The command of docs/install.md that begins like this."""
    text = (ROOT / "docs" / "install.md").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return line.partition(" #")[0].strip()


@pytest.mark.parametrize("source", ["local", "cpu", "cuda"])
def test_the_documented_commands_for_pip_give_a_torch_that_loads(
    machine: Machine, tmp_path: Path, source: str
) -> None:
    machine.python("import ensurepip; ensurepip.bootstrap(default_pip=True)")
    machine.variables |= {
        "PIP_INDEX_URL": machine.variables["UV_DEFAULT_INDEX"],
        "PIP_REQUIRE_VIRTUALENV": "1",  # never this machine's own packages
    }
    helper = make_wheel(tmp_path / "general", "helper", "1.0", (), "found = True")
    machine.lock("helper", "1.0", sha256(helper.read_bytes()).hexdigest())
    commands = [
        documented("pip install -r requirements/torch.txt"),
        documented("pip install --no-deps --require-hashes -r requirements/cpu.txt"),
    ]
    if source == "local":
        make_wheel(tmp_path / "local", "torch", "2.13.0+cpu", (), "build = 'local'")
        machine.variables["PIP_FIND_LINKS"] = str(tmp_path / "local")
    if source == "cpu":
        commands.insert(0, documented("pip install uv &&").split("&&")[1])

    for command in commands:
        done = machine.run("sh", "-c", f". {machine.env}/bin/activate && {command}")
        assert done.returncode == 0, done.stderr
    assert build(machine) == source
    assert machine.python("import helper; print(helper.found)") == "True"


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("install", "{env} cpu"),
        ("bench", "{env} cpu"),
        ("bench", "{trl} trl"),
        ("test-sinks", "{sinks} sinks"),
    ],
)
def test_make_installs_with_the_script(tmp_path: Path, target: str, what: str) -> None:
    env, trl, sinks = (tmp_path / name for name in ("env", "trl", "sinks"))
    command = ["make", "--dry-run", target, f"VENV={env}", f"TRL_VENV={trl}", f"SINKS_VENV={sinks}"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"sh requirements/install.sh {what.format(env=env, trl=trl, sinks=sinks)}\n" in said
