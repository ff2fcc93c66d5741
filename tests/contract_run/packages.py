"""vllm-ascend's pinned archives, unpacked. Nothing of them is installed."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from tests.contract.archives import CACHE

VLLM_ASCEND = {
    "0.23.0": "vllm_ascend-0.23.0-cp311-cp311-manylinux_2_34_x86_64.whl",
    "0.30.0rc2": "vllm_ascend-0.30.0rc2.tar.gz",
}
BUILD_INFO = "__device_type__ = 'A2'\n"
"""What vllm-ascend's setup.py writes (`gen_build_info`) for the chip that the stub names."""


class Missing(Exception):
    """What a part needs and this machine lacks, in one line."""


def unpack_vllm_ascend(version: str, folder: Path) -> Path:
    """The folder, in `folder`, that holds the package and its entry points. Raises Missing."""
    file = VLLM_ASCEND[version]
    archive = CACHE.find(file)
    if archive is None:
        raise Missing(f"{file} is not there: `make archives` downloads it")
    if file.endswith(".whl"):
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder)
        return folder
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    (package,) = folder.glob("*/vllm_ascend")
    (package / "_build_info.py").write_text(BUILD_INFO)
    return package.parent
