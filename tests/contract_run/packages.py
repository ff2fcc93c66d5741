"""The pinned archives, unpacked. Nothing of them is installed."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from tests.contract_run import archives

BUILD_INFO = "__device_type__ = 'A2'\n"
"""What vllm-ascend's setup.py writes (`gen_build_info`) for the chip that the stub names."""


def unpack_vllm_ascend(version: str, folder: Path) -> Path:
    """The folder, below `folder`, that holds the package and its entry points.

    Raises `archives.Missing` where the archive cannot be had.
    """
    archive = archives.path("vllm-ascend", version)
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder)
    else:
        with tarfile.open(archive) as source:
            source.extractall(folder, filter="data")
    (package,) = [*folder.glob("vllm_ascend/__init__.py"), *folder.glob("*/vllm_ascend/__init__.py")]
    build_info = package.with_name("_build_info.py")
    if not build_info.exists():
        build_info.write_text(BUILD_INFO)
    return package.parents[1]
