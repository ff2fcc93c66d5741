"""A machine to install on: an empty environment, a lock of a few packages and a clean shell."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"
NOWHERE = "http://127.0.0.1:9"  # the port of the discard service, which nothing serves
DEADLINE_SECONDS = 240


class Machine:
    """With no network, until a test gives it an index."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = home / "work" / "env"
        self.stubs = home / "stubs"
        self.stubs.mkdir()
        self.requirements = home / "requirements"
        self.requirements.mkdir()
        (self.requirements / "cpu.txt").touch()
        (self.requirements / "torch.txt").write_text("torch==2.13.0\n")
        for script in ("install.sh", "shared.sh"):
            shutil.copy(ROOT / "requirements" / script, self.requirements)
        self.variables: dict[str, str] = {
            "HOME": str(home),
            "PATH": f"{self.stubs}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "PIP_CONFIG_FILE": os.devnull,
            "UV_CACHE_DIR": str(home / "cache"),
            "UV_HTTP_RETRIES": "0",
            "UV_DEFAULT_INDEX": f"{NOWHERE}/simple",
            "HTTPS_PROXY": NOWHERE,
        }
        self.stub("df", f"echo header; echo / 0 0 {100 * 10**6} 0% /")

    def stub(self, name: str, script: str) -> Path:
        """A program that comes before the machine's own of this name."""
        path = self.stubs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def stub_python(self, script: str) -> None:
        """`script` sees the arguments of every call of Python first."""
        path = self.stub("python", f'{script}\nexec {sys.executable} "$@"')
        self.variables["PYTHON"] = str(path)

    def make_environment(self) -> None:
        """With uv in it, as the script's own first step leaves it."""
        if not UV.is_file():
            pytest.skip(f"uv is not at {UV}, where make install puts it")
        command = [sys.executable, "-m", "venv", "--without-pip", str(self.env)]
        subprocess.run(command, check=True, timeout=DEADLINE_SECONDS)
        (self.env / "bin" / "uv").symlink_to(UV)

    def lock(self, name: str, version: str, sha256: str) -> None:
        """Adds a package to the lock."""
        with (self.requirements / "cpu.txt").open("a") as file:
            file.write(f"{name}=={version} --hash=sha256:{sha256}\n")

    def install(self) -> subprocess.CompletedProcess[str]:
        return self.run("sh", str(self.requirements / "install.sh"), str(self.env), "cpu")

    def python(self, code: str) -> str:
        done = self.run(str(self.env / "bin" / "python"), "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.variables,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )


def says_one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only line of an installation that stopped with status 2."""
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    return line
