"""What deploy/npu/install.sh installs, in which order, and that it checks each version."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.install.indexes import Index, Server, serving
from tests.install.machine import says_one_line
from tests.install.npu import NpuMachine
from tests.install.wheels import make_source, make_wheel

ELSEWHERE = ("ASCEND_INDEX", "MINDSPEED_SOURCE", "PIP_FIND_LINKS")
VERSIONS = {
    "torch": "2.10.0+cpu",
    "torchvision": "0.25.0+cpu",
    "torchaudio": "2.10.0+cpu",
    "helper": "1.0",
    "triton-ascend": "3.2.2",
    "vllm": "0.23.0+empty",
    "vllm-ascend": "0.23.0",
    "mindspeed": "0.16.0",
    "trimaran": "0.1.0",
}


@pytest.fixture
def general(tmp_path: Path) -> Iterator[Server]:
    with serving(Index, None) as server:
        yield server


@pytest.fixture
def machine(tmp_path: Path, general: Server) -> NpuMachine:
    machine = NpuMachine(tmp_path, general)
    machine.stub("uname", "case $1 in -m) echo x86_64;; *) echo Linux;; esac")
    machine.make_environment()
    return machine


def steps(machine: NpuMachine, *arguments: str) -> list[str]:
    """The lines of the seven steps of a good installation, without their numbers' total."""
    done = machine.install(*arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "All versions are as pinned" in done.stdout.splitlines()[-1]
    return [line for line in done.stdout.splitlines() if line[1:3] == "/7"]


def test_everything_is_installed_in_order_and_a_second_time_it_stands(
    machine: NpuMachine, general: Server
) -> None:
    said = steps(machine)
    assert [line.partition("/")[0] for line in said] == list("1234567")
    assert all(line.endswith(": installing") for line in said)
    assert {name: machine.version(name) for name in VERSIONS} == VERSIONS

    general.asked.clear()
    for variable in ELSEWHERE:
        del machine.variables[variable]
    said = steps(machine)
    assert [line.rpartition(": ")[2] for line in said] == ["stands"] * 6 + ["installing"]
    assert general.asked == []


def test_vllm_from_a_folder_is_built_for_the_empty_device(
    machine: NpuMachine, general: Server
) -> None:
    source = make_source(
        machine.home / "checkout", "vllm", {"empty": "0.23.0+empty", "any": "0.23.0"}
    )
    machine.variables["VLLM_SOURCE"] = str(source)
    with (source / "backend.py").open(
        "a"
    ) as backend:  # it imports torch, which must not load torch-npu
        backend.write("assert os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] == '0'\n")

    steps(machine)
    assert machine.version("vllm") == "0.23.0+empty"
    assert not [path for path in general.asked if path == "/simple/vllm/"]


@pytest.mark.parametrize(
    ("lock", "package"), [("npu", "helper"), ("npu-vllm", "vllm"), ("npu-a2", "vllm_ascend")]
)
def test_a_file_with_another_hash_is_refused(machine: NpuMachine, lock: str, package: str) -> None:
    (file,) = machine.general.glob(f"{package}-*")
    machine.pin(lock, file, sha="0" * 64)

    done = machine.install()
    assert done.returncode == 2
    assert "Hash mismatch" in done.stderr
    assert "as the lines above say" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("package", ["vllm", "mindspeed"])
def test_another_version_than_the_pinned_one_is_found_after_the_installation(
    machine: NpuMachine, package: str
) -> None:
    source = machine.source(package, "0.15.0")
    machine.variables[f"{package.upper()}_SOURCE"] = str(source)

    line = says_one_line(machine.install())
    assert f"After the installation {package} is 0.15.0 and {VERSIONS[package]} is wanted" in line


@pytest.mark.parametrize(
    ("name", "version"),
    [("torch", "2.11.0+cpu"), ("torch", "2.10.0"), ("vllm", "0.23.0"), ("mindspeed", "0.12.1")],
)
def test_another_version_that_stands_is_replaced(
    machine: NpuMachine, tmp_path: Path, name: str, version: str
) -> None:
    """torch 2.10.0 without +cpu and vLLM without +empty are builds for CUDA."""
    machine.put(make_wheel(tmp_path / "before", name, version))
    steps(machine)
    assert machine.version(name) == VERSIONS[name]


def test_a_locked_package_that_another_step_replaced_is_found(
    machine: NpuMachine, tmp_path: Path
) -> None:
    """A source may ask for what it wants while it is built; here a build damages the lock's."""
    source = Path(machine.variables["MINDSPEED_SOURCE"])
    site = machine.python("import sysconfig; print(sysconfig.get_path('purelib'))")
    with (source / "backend.py").open("a") as backend:
        backend.write(f"shutil.rmtree({site + '/helper-1.0.dist-info'!r}, ignore_errors=True)\n")

    line = says_one_line(machine.install())
    assert "packages differ from" in line and "helper==1.0" in line


def test_triton_beside_triton_ascend_is_refused(machine: NpuMachine, tmp_path: Path) -> None:
    machine.put(make_wheel(tmp_path / "before", "triton", "3.6.0"))
    line = says_one_line(machine.install())
    assert "pip uninstall triton triton-ascend" in line


def test_what_a_package_asks_for_and_does_not_get_is_said(
    machine: NpuMachine, tmp_path: Path
) -> None:
    machine.pin("npu", make_wheel(machine.general, "helper", "1.0", ("absent>=2",)))
    done = machine.install()
    assert done.returncode == 2
    assert "`helper` requires `absent>=2`" in done.stderr.splitlines()[0]
    assert "packages lack what they ask for" in done.stderr.splitlines()[1]


def test_without_a_cpu_build_of_torch_it_stops_on_x86(machine: NpuMachine) -> None:
    """The general index has one, but for CUDA."""
    del machine.variables["PIP_FIND_LINKS"]
    make_wheel(machine.general, "torch", "2.10.0")
    assert "PyTorch's own index does not give torch==2.10.0" in says_one_line(machine.install())


def test_an_a3_does_not_get_what_is_compiled_for_a2(machine: NpuMachine) -> None:
    machine.variables["VLLM_ASCEND_SOURCE"] = str(machine.vllm_ascend(machine.home / "a3", "A2"))
    line = says_one_line(machine.install(str(machine.env), "a3"))
    assert "vllm-ascend is compiled for a2 and a3 is wanted" in line


def test_the_vendors_image_keeps_what_it_has(machine: NpuMachine, general: Server) -> None:
    """It has all but MindSpeed, ours and parts of the lock."""
    image = machine.home / "image"
    vllm = make_wheel(image, "vllm", "0.23.0+empty")
    triton = machine.home / "ascend" / "triton_ascend-3.2.2-py3-none-any.whl"
    machine.put(*(machine.home / "torch").glob("*.whl"), machine.vllm_ascend(image, "A3"))
    machine.put(vllm, triton)
    del machine.variables["ASCEND_INDEX"], machine.variables["PIP_FIND_LINKS"]

    said = [line.rpartition(": ")[2] for line in steps(machine, str(machine.env), "a3")]
    assert said == [
        *("stands", "installing", "stands", "stands", "stands", "installing", "installing")
    ]


def test_a_python_that_is_no_virtual_environment_is_not_made_one(machine: NpuMachine) -> None:
    prefix = machine.home / "python3.12"
    (prefix / "bin").mkdir(parents=True)
    # -S: without the packages of the environment that runs the tests
    machine.stub("python", f'exec {sys.executable} -S "$@"').rename(prefix / "bin" / "python")
    machine.stub("pip", 'echo pip "$@"; exit 1').rename(prefix / "bin" / "pip")

    done = machine.install(str(prefix), "a2")
    assert done.returncode == 2
    assert done.stderr.startswith("pip install")
    assert not (prefix / "pyvenv.cfg").exists()
