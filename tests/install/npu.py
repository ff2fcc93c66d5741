"""A machine on which deploy/npu/install.sh runs, with stand-ins for every package that it installs."""

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from tests.install.indexes import Server
from tests.install.machine import ROOT, Machine
from tests.install.wheels import make_archive, make_source, make_wheel


class NpuMachine(Machine):
    """An A2 host with driver, CANN 9.1.0 and ATB, and one index that has what the lock names.

    Example: machine = NpuMachine(tmp_path, server); machine.make_environment(); machine.install()
    """

    def __init__(self, home: Path, general: Server) -> None:
        if sys.version_info >= (3, 13):
            pytest.skip("packages for NPUs end at Python 3.12, and so does their installer")
        super().__init__(home)
        script = home / "deploy" / "npu"
        script.mkdir(parents=True)
        shutil.copy(ROOT / "deploy" / "npu" / "install.sh", script)
        self.general = home / "general"
        self.general.mkdir()
        general.folder = self.general
        self.cann = home / "cann"
        self.set_cann("9.1.0")
        self.stub("npu-smi", "echo A table of devices")
        self.variables |= {
            "UV_DEFAULT_INDEX": f"{general.url}/simple",
            "NO_PROXY": "127.0.0.1",
            "ASCEND_HOME_PATH": str(self.cann),
            "ATB_HOME_PATH": "/usr/local/Ascend/nnal/atb",
            "PIP_FIND_LINKS": str(self._torch()),
            "ASCEND_INDEX": str(home / "ascend"),
            "MINDSPEED_SOURCE": str(self.source("mindspeed", "0.16.0")),
        }
        make_wheel(home / "ascend", "triton-ascend", "3.2.2")
        self.pin("npu", make_wheel(self.general, "helper", "1.0"))
        self.pin("npu-a2", self.vllm_ascend(self.general, "A2"))
        vllm = make_source(home / "vllm", "vllm", {"empty": "0.23.0+empty", "any": "0.23.0"})
        self.pin("npu-vllm", make_archive(self.general, vllm, "vllm", "0.23.0"))
        make_source(home, "trimaran", {"any": "0.1.0"})

    def _torch(self) -> Path:
        folder = self.home / "torch"
        for name, version in (("torch", "2.10.0"), ("torchvision", "0.25.0")):
            make_wheel(folder, name, f"{version}+cpu")
        make_wheel(folder, "torchaudio", "2.10.0+cpu")
        return folder

    def set_cann(self, version: str) -> None:
        folder = self.cann / "x86_64-linux"
        folder.mkdir(parents=True, exist_ok=True)
        text = f"package_name=Ascend-cann-toolkit\nversion={version}\narch=x86_64\n"
        (folder / "ascend_toolkit_install.info").write_text(text)

    def source(self, name: str, version: str) -> Path:
        """A source of this version, whatever device it is built for."""
        return make_source(self.home / f"{name}-{version}", name, {"any": version})

    def vllm_ascend(self, folder: Path, chip: str) -> Path:
        files = {
            "vllm_ascend/__init__.py": "raise ImportError('needs a device')\n",
            "vllm_ascend/_build_info.py": f"# Made by the build\n__device_type__ = '{chip}'\n",
        }
        return make_wheel(folder, "vllm-ascend", "0.23.0", others=files)

    def pin(self, lock: str, file: Path, sha: str = "") -> None:
        """Make this file the lock's only one."""
        name, version = file.name.removesuffix(".tar.gz").split("-")[:2]
        digest = sha or sha256(file.read_bytes()).hexdigest()
        text = f"{name}=={version} --hash=sha256:{digest}\n"
        (self.requirements / f"{lock}.txt").write_text(text)

    def install(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """For A2 into the machine's environment, unless other arguments are given."""
        script = str(self.home / "deploy" / "npu" / "install.sh")
        return self.run("sh", script, *(arguments or (str(self.env), "a2")))

    def put(self, *wheels: Path) -> None:
        """Installs what the script shall find."""
        uv = str(self.env / "bin" / "uv")
        python = str(self.env / "bin" / "python")
        files = [str(wheel) for wheel in wheels]
        done = self.run(uv, "pip", "install", "--no-deps", "--no-index", "--python", python, *files)
        assert done.returncode == 0, done.stderr

    def version(self, package: str) -> str:
        return self.python(f"import importlib.metadata as m; print(m.version({package!r}))")
