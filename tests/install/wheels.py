"""Wheels of a few hundred bytes: what an installer needs of a package, and a module that says it."""

import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

# Builds nothing: gives out the wheel that lies there for the device, as vLLM's build asks for it.
BACKEND = """
import os, pathlib, shutil

def build_wheel(folder, settings=None, metadata=None):
    made = pathlib.Path("made")
    device = made / os.environ.get("VLLM_TARGET_DEVICE", "any")
    (wheel,) = (device if device.is_dir() else made / "any").glob("*.whl")
    shutil.copy(wheel, folder)
    return wheel.name
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    needs: tuple[str, ...] = (),
    module: str = "",
    others: Mapping[str, str] | None = None,
) -> Path:
    """A wheel for any Python whose module `name`, if it has one, is the code `module`.

    `others` are further files, by their paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        **(others or {}),
        f"{stem}.dist-info/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
            + [f"Requires-Dist: {need}" for need in needs]
            + [""]
        ),
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if module:
        files[f"{name.replace('-', '_')}.py"] = module
    files[f"{stem}.dist-info/RECORD"] = "".join(f"{path},,\n" for path in files)
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
    return path


def make_source(folder: Path, name: str, wheels: Mapping[str, str]) -> Path:
    """A source that builds with nothing installed. `wheels` is device to version; "any" for others."""
    for device, version in wheels.items():
        make_wheel(folder / "made" / device, name, version)
    (folder / "backend.py").write_text(BACKEND)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "setup.py").touch()
    return folder


def make_archive(folder: Path, source: Path, name: str, version: str) -> Path:
    """A source archive, as a package index has it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(source, f"{name}-{version}")
    return path
