"""The pinned archives, in `.cache/contract/` under names that begin with their digests.

    python -m tests.contract.archives      downloads what is missing; 210 MB the first time

Ends with status 2 and one line where no index can be reached, and with status 1 where an index
gives other bytes than archives.toml pins.

pip itself does the talking, so its settings count here too: index, mirror, proxy, certificate. Its
command line cannot do this: `pip download` builds what comes as source, and these need CANN for
that. So this uses pip's own parts, which it does not promise to keep: an ImportError or an
AttributeError here means that pip has moved them.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PINS = tomllib.loads(Path(__file__).with_name("archives.toml").read_text(encoding="utf-8"))
STACKS: dict[str, list[str]] = PINS["stacks"]
RETRIES = 1
TIMEOUT_SECONDS = 30


class OfflineError(Exception):
    """No index that pip knows gave the file."""


class DigestError(Exception):
    """A file of a pinned name with other bytes in it."""


@dataclass(frozen=True)
class Cache:
    folder: Path
    sha256: Mapping[str, str]
    """By file name."""

    def place(self, file: str) -> Path:
        return self.folder / f"{self.sha256[file][:16]}-{file}"

    def find(self, file: str) -> Path | None:
        """None when it is not there. Raises DigestError."""
        path = self.place(file)
        if not path.is_file():
            return None
        self._check(file, path.read_bytes())
        return path

    def keep(self, file: str, content: bytes) -> None:
        """Whole or not at all. Raises DigestError."""
        self._check(file, content)
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as temporary:
            temporary.write(content)
        os.replace(temporary.name, self.place(file))

    def _check(self, file: str, content: bytes) -> None:
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256[file]:
            raise DigestError(
                f"{file}: sha256 is {found}, not {self.sha256[file]} as archives.toml pins;"
                f" remove it from {self.folder} if it is there, and distrust the package index if"
                " it comes back"
            )


CACHE = Cache(Path(__file__).parents[2] / ".cache" / "contract", PINS["sha256"])


def download(file: str) -> bytes:
    """From the first of pip's indexes that has it. Raises OfflineError."""
    from pip._internal.commands import create_command
    from pip._internal.index.collector import LinkCollector, parse_links
    from pip._internal.models.link import Link

    command = create_command("download")
    arguments = ["--quiet", f"--retries={RETRIES}", f"--timeout={TIMEOUT_SECONDS}"]
    options, _ = command.parse_args(arguments)
    session = command._build_session(options)  # pyright: ignore  # of pip's IndexGroupCommand
    collector = LinkCollector.create(session, options=options)
    project = file.partition("-")[0].replace("_", "-")
    for location in collector.search_scope.get_index_urls_locations(project):
        page = collector.fetch_response(Link(location))
        for link in parse_links(page) if page else ():
            if link.filename == file:
                return _read(session, link.url_without_fragment)
    raise OfflineError(f"no package index that pip knows could be reached or has {file}")


def _read(session: Any, url: str) -> bytes:
    try:
        # Not to be unpacked on the way: the digest is of the file.
        answer = session.get(url, headers={"Accept-Encoding": "identity"})
        answer.raise_for_status()
    except OSError as error:  # what every error of pip's session is
        raise OfflineError(f"{url.rpartition('/')[2]}: {type(error).__name__}") from None
    return answer.content


def main(cache: Cache = CACHE) -> int:
    try:
        for file in cache.sha256:
            if not cache.find(file):
                print(f"downloading {file}", flush=True)
                cache.keep(file, download(file))
    except OfflineError as error:
        print(f"{error}: the contract with the NPU packages is not checked", file=sys.stderr)
        return 2
    except DigestError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
