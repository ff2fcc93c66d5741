"""The cache of the pinned archives, and what happens without a network; a small index stands by."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.archives import CACHE, STACKS, Cache, DigestError
from tests.contract.stack import ROOT
from tests.install.indexes import Index, serving

FILE = "vllm-0.23.0.tar.gz"
NOWHERE = "http://127.0.0.1:9/simple"  # the port of the discard service, which nothing serves
SCRIPT = """
import sys
from pathlib import Path
from tests.contract.archives import Cache, main

file, sha256, folder = sys.argv[1:]
sys.exit(main(Cache(Path(folder), {file: sha256})))
"""


def fetch(index: str, file: str, sha256: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, where `file` is all that is pinned."""
    variables = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": index, "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, file, sha256, str(cache)],
        env=variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_every_archive_of_a_stack_is_pinned_and_none_for_nothing() -> None:
    assert {file for files in STACKS.values() for file in files} == set(CACHE.sha256)
    assert all(len(digest) == 64 for digest in CACHE.sha256.values())


def test_the_cache_names_an_archive_by_its_digest(tmp_path: Path) -> None:
    cache = Cache(tmp_path, CACHE.sha256)
    assert cache.find(FILE) is None
    assert cache.place(FILE).name == f"{CACHE.sha256[FILE][:16]}-{FILE}"


def test_other_bytes_are_an_error_and_are_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, CACHE.sha256)
    with pytest.raises(DigestError, match=FILE):
        cache.keep(FILE, b"something else")
    assert list(tmp_path.iterdir()) == []
    cache.place(FILE).write_bytes(b"something else")
    with pytest.raises(DigestError, match="remove it"):
        cache.find(FILE)


def test_an_archive_comes_from_the_index_that_pip_knows(tmp_path: Path) -> None:
    file, content = "thing-1.0-py3-none-any.whl", b"a wheel"
    digest = hashlib.sha256(content).hexdigest()
    shelf, cache = tmp_path / "shelf", tmp_path / "cache"
    shelf.mkdir()
    (shelf / file).write_bytes(content)
    with serving(Index, shelf) as server:
        index = f"{server.url}/simple"
        done = fetch(index, file, digest, cache)
        assert (done.returncode, done.stderr) == (0, "")
        assert [path.read_bytes() for path in cache.iterdir()] == [content]
        asked = len(server.asked)
        assert fetch(index, file, digest, cache).stdout == ""
        assert len(server.asked) == asked  # what is in the cache is not asked for again

        other = fetch(index, file, digest[::-1], cache)
        assert other.returncode == 1
        assert f"{file}: sha256 is {digest}" in other.stderr


def test_without_a_network_one_line_says_so(tmp_path: Path) -> None:
    done = fetch(NOWHERE, "thing-1.0-py3-none-any.whl", "0" * 64, tmp_path / "cache")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "thing-1.0-py3-none-any.whl" in line and "is not checked" in line
