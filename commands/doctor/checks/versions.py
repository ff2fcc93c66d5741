"""Installed versions against the matrix, a file of rows that each name their source."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from commands.doctor.finding import Finding, KnownFault, Severity
from commands.doctor.system import System

FORM = 1
DRIVER = "usr/local/Ascend/driver/version.info"
FIRMWARE = "usr/local/Ascend/firmware/version.info"
NVIDIA = "proc/driver/nvidia/version"

MISMATCH = KnownFault(
    "versions/mismatch",
    Severity.ERROR,
    "{name} {found}: {wanted} is needed beside {because}",
    "packages that were built for other versions of each other fail to load, or compute something"
    " else. Source: {source}",
    "{fix}",
)
ABSENT = KnownFault(
    "versions/absent",
    Severity.ERROR,
    "{name} is not installed: {wanted} is needed beside {because}",
    "a process that needs it ends when it imports it. Source: {source}",
    "{fix}",
)

OTHER_BUILD = KnownFault(
    "versions/build",
    Severity.ERROR,
    "torchvision {found} is not a build for torch {torch}",
    "beside torch's CPU build it fails to load, and with it vLLM and transformers' readers of images:"
    " operator torchvision::nms does not exist",
    "pip uninstall torchvision  # nothing here needs it",
)


@dataclass(frozen=True, slots=True)
class VersionRow:
    """Example: VersionRow({"vllm": "==0.30.0"}, {"torch": "==2.13.0"}, Severity.ERROR, "...", "pip ...")"""

    when: Mapping[str, str]
    needs: Mapping[str, str]
    severity: Severity
    source: str
    fix: str


@lru_cache(maxsize=1)
def load_matrix() -> tuple[VersionRow, ...]:
    tree = yaml.safe_load(
        files("commands.doctor").joinpath("matrix.yaml").read_text(encoding="utf-8")
    )
    assert tree["form"] == FORM
    rows = (row | {"severity": Severity(row["severity"])} for row in tree["rows"])
    return tuple(VersionRow(**row) for row in rows)


def read_versions(system: System, rows: Iterable[VersionRow]) -> dict[str, str]:
    """Name -> version of what the rows ask for and what is there."""
    names = {"torch", "torchvision"} | {n for row in rows for n in (*row.when, *row.needs)}
    found = {
        "python": system.python,
        "glibc": platform.libc_ver()[1],
        "cann": _read_cann(system),
        "npu-driver": _stated(system.read(DRIVER)),
        "npu-firmware": _stated(system.read(FIRMWARE)),
        "nvidia-driver": _first(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", system.read(NVIDIA)),
    }
    for name in names - found.keys():
        packages = metadata.distributions(name=name, path=list(system.site))
        if (package := next(iter(packages), None)) is not None:
            found[name] = package.version
    return {name: version for name, version in found.items() if version}


def check_versions(found: Mapping[str, str], rows: Iterable[VersionRow]) -> Iterator[Finding]:
    for row in rows:
        if not all(name in found and _fits(found[name], want) for name, want in row.when.items()):
            continue
        because = " and ".join(f"{name} {found[name]}" for name in row.when) or "Trimaran"
        for name, specifier in row.needs.items():
            wanted = specifier.lstrip("?")
            places = {"name": name, "wanted": wanted, "because": because, "fix": row.fix}
            places |= {"source": row.source, "found": found.get(name, "")}
            if name not in found:
                if not specifier.startswith("?"):
                    yield ABSENT.at(row.severity).found(**places)
            elif not _fits(found[name], wanted):
                yield MISMATCH.at(row.severity).found(**places)


def check_build(found: Mapping[str, str]) -> Iterator[Finding]:
    """Versions that fit, of builds that do not: their local labels, such as `+cpu`, say which they are."""
    torch, torchvision = found.get("torch", ""), found.get("torchvision", "")
    if torch.endswith("+cpu") and torchvision and not torchvision.endswith("+cpu"):
        yield OTHER_BUILD.found(found=torchvision, torch=torch)


def _fits(version: str, specifier: str) -> bool:
    """False also for a version that cannot be read as one."""
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _read_cann(system: System) -> str:
    """As deploy/npu/install.sh reads it: below the folder that CANN's set_env.sh names."""
    home = system.variables.get("ASCEND_HOME_PATH")
    if not home:
        return ""
    folder = Path(home)
    infos = (
        info
        for depth in ("", "*/", "*/*/")
        for info in folder.glob(f"{depth}ascend_*_install.info")
    )
    return next((_stated(info.read_text(encoding="utf-8")) for info in infos), "")


def _stated(text: str) -> str:
    return _first(r"(?im)^version=(\S+)", text)


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""
