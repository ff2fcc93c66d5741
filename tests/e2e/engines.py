"""A container engine for tests: a shell loop that starts one service again and again."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests import marked
from trimaran.host.shared_memory import SUFFIX, remove_left

LOOP = """
trap 'stopped=1; kill -TERM $child' TERM
while [ -z "$stopped" ]; do
    {command} >> {log} 2>&1 &
    child=$!
    wait $child; code=$?
    [ -n "$stopped" ] && {{ wait $child; code=$?; }}
    echo $code >> {codes}
    sleep 0.3
done
"""


@dataclass
class Engine:
    """Example: Engine(tmp_path, "rollout", "rollout-1", store_file, token_file, mark).stop()"""

    folder: Path
    kind: str
    name: str
    store: Path
    token: Path
    mark: Path
    options: tuple[str, ...] = ()
    """Of `trimaran serve`, beside those that every service has."""
    index: str = "auto"
    prefix: tuple[str, ...] = ()
    """What runs the command on its host."""
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def start(self) -> Engine:
        self.host.mkdir(parents=True, exist_ok=True)
        command = [*self.prefix, sys.executable, "-m", "commands.cli", "serve", self.kind]
        command += ["--store-file", str(self.store), "--token-file", str(self.token)]
        command += ["--run-folder", str(self.host), "--index", self.index]
        command += self.options
        text = LOOP.format(
            command=shlex.join(command),
            log=shlex.quote(str(self.host / "log")),
            codes=shlex.quote(str(self.host / "codes")),
        )
        self.shell = subprocess.Popen(
            ["bash", "-c", text],
            env={**os.environ, **self.variables, marked.MARK: str(self.mark)},
            start_new_session=True,
        )
        return self

    @property
    def host(self) -> Path:
        """What this service sees of a disk, alone."""
        return self.folder / self.name

    @property
    def log(self) -> str:
        path = self.host / "log"
        return path.read_text() if path.exists() else ""

    @property
    def codes(self) -> list[int]:
        """Exit codes of the service, in order."""
        path = self.host / "codes"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def stop(self) -> None:
        """As `docker stop`: SIGTERM to the service, which is not started again."""
        self.shell.send_signal(signal.SIGTERM)
        self.shell.wait(60)

    def kill(self) -> None:
        if self.shell.poll() is None:
            os.killpg(self.shell.pid, signal.SIGKILL)
            self.shell.wait(60)
            for note in self.host.rglob(f"*{SUFFIX}"):  # a container's shared memory goes with it
                remove_left(note)
