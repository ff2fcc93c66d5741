"""Whose fault it is that a file cannot be read: a machine without descriptors ends no run."""

from __future__ import annotations

import errno
import os
import resource
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trimaran.config import load_config
from trimaran.data.files import read_named
from trimaran.errors import InputError, UnavailableError
from trimaran.host.reread import Reread
from trimaran.host.system_errors import refused
from trimaran.model.folder import read_model_folder
from trimaran.model.tensor_names import read_names
from trimaran.run.context import CONTEXT_NAME, RunContext
from trimaran.trust.access import read_secret, read_token


@contextmanager
def no_files() -> Iterator[None]:
    """Lets this process open no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


READERS: dict[str, Callable[[Path], Any]] = {
    CONTEXT_NAME: RunContext.in_folder,
    "token": lambda folder: read_token(folder / "token"),
    "secret": lambda folder: read_secret(folder / "secret", "option"),
    "config.yaml": lambda folder: load_config(folder / "config.yaml"),
    "config.json": read_model_folder,
    "image.png": lambda folder: read_named(folder, "image.png"),
    "model.safetensors": read_names,
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_for_which_there_is_no_descriptor_is_no_wrong_input(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("no file of ours")
    with pytest.raises(UnavailableError, match="Too many open files.*the machine"), no_files():
        READERS[name](tmp_path)
    if name not in ("image.png", "secret"):  # these may hold anything
        with pytest.raises(InputError):
            READERS[name](tmp_path)


def test_what_a_machine_lacks_may_pass() -> None:
    for number in (errno.EMFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT):
        reported = refused("x", OSError(number, os.strerror(number)), "name another")
        assert isinstance(reported, UnavailableError)
    reported = refused("x", OSError(errno.ENOENT, "no such file"), "name another")
    assert isinstance(reported, InputError) and str(reported) == "x (no such file); name another"


def test_what_libraries_make_of_it_is_seen_through() -> None:
    def wrapped() -> Exception:
        try:
            try:
                raise OSError(errno.EMFILE, "Too many open files")
            except OSError:
                raise ValueError("no tokenizer") from None
        except ValueError as error:
            return error

    assert isinstance(refused("x", wrapped()), UnavailableError)
    assert isinstance(refused("x", Exception("Stale file handle (os error 116)")), UnavailableError)
    assert isinstance(refused("x", ssl.SSLError(116, "KEY_VALUES_MISMATCH")), InputError)


def test_what_changed_while_there_was_no_descriptor_is_read_later(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    secret = Reread([path], lambda: read_secret(path, "option"))
    path.write_text("the new one")
    with no_files():
        assert secret.current() == "old"
    assert secret.current() == "the new one"
