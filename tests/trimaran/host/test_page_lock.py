"""Against fakes that answer as CUDA and CANN do; neither is here."""

import ctypes
import logging
import types
from typing import Any

import pytest
import torch

from trimaran.host.device import Device
from trimaran.host.page_lock import lock_pages

PLACE, SIZE = 0x7F0000000000, 3 << 20


class Runtime:
    """Of either vendor; `code` is what it answers to whatever asks for a lock."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.locked: dict[int, tuple[int, int]] = {}
        self.num_ended_errors = 0

    def lock(self, address: Any, size: Any, flags: Any) -> int:
        if not self.code:
            self.locked[value_of(address)] = value_of(size), value_of(flags)
        return self.code

    def unlock(self, address: Any) -> None:
        del self.locked[value_of(address)]

    def end_error(self, *arguments: Any, **options: Any) -> None:
        self.num_ended_errors += 1
        raise RuntimeError("CUDA error: OS call failed")


def value_of(number: Any) -> int:
    return getattr(number, "value", number)


def install(monkeypatch: pytest.MonkeyPatch, kind: str, code: int) -> Runtime:
    runtime = Runtime(code)
    if kind == "cuda":
        names = {"cudaHostRegister": runtime.lock, "cudaHostUnregister": runtime.unlock}
        monkeypatch.setattr(torch.cuda, "cudart", lambda: types.SimpleNamespace(**names))
        monkeypatch.setattr(torch, "zeros", runtime.end_error)
    else:
        names = {"aclrtHostRegisterV2": runtime.lock, "aclrtHostUnregister": runtime.unlock}
        libraries = {"libascendcl.so": types.SimpleNamespace(**names)}
        monkeypatch.setattr(ctypes, "CDLL", libraries.__getitem__)
    return runtime


@pytest.mark.parametrize(("kind", "flags"), [("cuda", 1), ("npu", 0x10000002)])
def test_pages_are_locked_until_they_are_unlocked(monkeypatch, kind, flags):
    runtime = install(monkeypatch, kind, 0)
    unlock = lock_pages(kind, PLACE, SIZE)
    assert runtime.locked == {PLACE: (SIZE, flags)}
    assert unlock is not None
    unlock()
    assert runtime.locked == {} and not runtime.num_ended_errors


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_a_refusal_is_a_line_of_the_log(monkeypatch, caplog, kind):
    runtime = install(monkeypatch, kind, 801)
    with caplog.at_level(logging.WARNING):
        assert lock_pages(kind, PLACE, SIZE) is None
    assert f"3 MiB of host memory are not locked for {kind} (801)" in caplog.text
    # CUDA's last error would be raised after torch's next kernel.
    assert runtime.num_ended_errors == (kind == "cuda")


def test_a_cann_without_the_call_is_a_line_of_the_log(monkeypatch, caplog):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: types.SimpleNamespace())
    with caplog.at_level(logging.WARNING):
        assert lock_pages("npu", PLACE, SIZE) is None
    assert "aclrtHostRegisterV2" in caplog.text


def test_a_host_locks_nothing():
    assert Device("cpu", "gloo").lock_pages(PLACE, SIZE) is None
