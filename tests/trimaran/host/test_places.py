"""A shared folder and a bucket keep one contract: whole files by name, and errors that name the place."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.bucket_server import Endpoint
from trimaran.errors import DeadlineError, InputError, NotFoundError, UnavailableError
from trimaran.host.places import (
    PART_BYTES,
    Place,
    fetch_file,
    host_lock,
    open_place,
    put_in_place,
)


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return open_place(str(tmp_path / "shared"), "run.checkpoints")
    request.getfixturevalue("bucket")
    return open_place(f"s3://payloads/{tmp_path.name}", "run.checkpoints")


def test_files_come_back_by_name(place: Place, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")
    place.upload(source, "a/one")
    place.write(b"two", "a/b/two")
    place.write(b"TWO", "a/b/two")
    assert place.read("a/one") == b"0123456789"
    assert bytes(place.read_part("a/one", 2, 3)) == b"234"
    assert place.sizes() == place.sizes("a") == {"a/one": 10, "a/b/two": 3}
    assert place.sizes("a/b") == {"a/b/two": 3}
    place.delete(["a/one", "a/never"])
    assert place.sizes() == {"a/b/two": 3}
    assert place.sizes("other") == {}
    with pytest.raises(NotFoundError, match=r"run\.checkpoints: .*a/one"):
        place.read("a/one")


def test_a_file_of_many_parts_is_fetched_whole(place: Place, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "host" / "target"
    source.write_bytes(os.urandom(2 * PART_BYTES + 12345))
    place.upload(source, "big")
    with ThreadPoolExecutor(3) as pool:  # three ranks of one host
        list(pool.map(lambda _: fetch_file(place, "big", target), range(3)))
    assert target.read_bytes() == source.read_bytes()
    assert not target.with_name("target.partial").exists()
    with pytest.raises(NotFoundError):
        fetch_file(place, "lost", tmp_path / "host" / "lost")


def test_a_place_that_is_away_or_not_there_is_named(
    bucket: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((UnavailableError, NotFoundError), match="s3://never"):
        open_place("s3://never/x", "run.checkpoints").write(b"", "a")
    with pytest.raises(InputError, match=r"run\.checkpoints: nowhere://x"):
        open_place("nowhere://x", "run.checkpoints")
    with pytest.raises(UnavailableError, match=rf"run\.checkpoints: {__file__}/a: "):
        open_place(__file__, "run.checkpoints").write(b"", "a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    away = open_place("s3://payloads/x", "run.checkpoints", seconds=0.5)
    with pytest.raises(UnavailableError, match="see that the bucket is there and answers"):
        away.read("a")


def test_who_waits_for_a_lock_has_a_deadline(tmp_path: Path) -> None:
    for _ in range(2):  # it is free again
        with (
            host_lock(tmp_path / "lock", 0, "fetching"),
            pytest.raises(DeadlineError, match="fetching: another process"),
            host_lock(tmp_path / "lock", 0, "fetching"),
        ):
            pass


class Refusing(BaseHTTPRequestHandler):
    """What a real S3 server answers to a wrong secret."""

    def do_GET(self) -> None:
        self.send_response(403)
        self.end_headers()
        self.wfile.write(b"<Error><Code>SignatureDoesNotMatch</Code></Error>")

    def log_message(self, format: str, *args: object) -> None: ...


def test_a_bucket_that_refuses_us_is_no_bucket_that_is_away(
    bucket: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it refuses to list: a library may have a kind of error of its own for that."""
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        place = open_place("s3://payloads/demo", "run.checkpoints")
        for call in (place.sizes, lambda: place.read("one")):
            with pytest.raises(InputError, match="403 Forbidden.*give this host credentials"):
                call()
        server.shutdown()


def folder_with(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


def test_a_replaced_folder_that_cannot_be_removed_is_out_of_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on NFS, where a file that a process has open stays."""

    def refuse(path: Path) -> None:
        raise OSError(16, "Device or resource busy", str(path / ".nfs0001"))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    model = folder_with(tmp_path / "model", "0")
    for text in ("1", "2"):
        put_in_place(folder_with(tmp_path / "new", text), model)
        assert (model / "file").read_text() == text
        assert not (tmp_path / "model.replaced").exists()
    left = sorted(tmp_path.glob("model.replaced-*"))
    assert sorted((path / "file").read_text() for path in left) == ["0", "1"]
    assert all(f"{path}: cannot be removed" in caplog.text for path in left)
    folder_with(tmp_path / "model.replaced", "broken off")
    put_in_place(folder_with(tmp_path / "new", "3"), model)
    assert (model / "file").read_text() == "3"


def test_a_folder_that_cannot_be_replaced_has_its_name_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.name == "new":
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    model = folder_with(tmp_path / "model", "before")
    with pytest.raises(OSError, match="Input/output"):
        put_in_place(folder_with(tmp_path / "new", "after"), model)
    assert (model / "file").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "new"]
