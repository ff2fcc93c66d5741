"""What runs in a process of the pool: loads functions, and judges batch after batch.

The deadline of a batch is the kernel's: an interval timer whose signal ends the process, whatever
holds the interpreter's lock. After anything but an outcome the process ends, so that what comes
next meets a fresh one. Only pebble's loop and the functions of this module run here, all of them
in the main thread.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from typing import NoReturn

from services.reward.functions.loading import LoadedFunction, load_function
from services.reward.functions.returned import FunctionFault
from services.reward.outcome import Fault
from services.reward.terms import FunctionSpec
from services.reward.workers.journal import JournalWriter, encode_entry, encode_raised
from trimaran.errors import InputError, UnavailableError
from trimaran.host.lifetime import die_with_parent
from trimaran.rewards import ReferenceUnusableError, Sample
from trimaran.trust.credentials import is_credential

EXIT_RAISED = 70
"""The journal's last line says what."""

STALL_SECONDS = 0.5
"""A chunk that takes longer ends before its next batch: the rest of it goes to others."""

MIB = 1 << 20
RULES = "services.reward.rules."

NOT_THE_ANSWERS = (
    ReferenceUnusableError,
    FunctionFault,
    UnavailableError,
    ModuleNotFoundError,
    OSError,
)
"""Errors that would have been raised whatever the answer was: faults. TimeoutError is an OSError and
yet none of them, as it says that the answer took too long."""

_journal: JournalWriter
_memory_mib: int


def start(journal_path: str, memory_mib: int) -> None:
    """Once a process, before anything else."""
    global _journal, _memory_mib
    _close_alive_pipe()
    die_with_parent(os.getppid(), signal.SIGKILL)
    os.setsid()  # what a function starts is killed with us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # pebble's handler would wait for the interpreter
    os.dup2(2, 1)  # what a function prints goes to the log
    sys.stdout = sys.stderr
    # plugin.token_variable may be any of ours; what starts the service may pass on more
    for name in list(os.environ):
        if name.startswith("TRIMARAN_") or is_credential(name):
            del os.environ[name]
    _journal, _memory_mib = JournalWriter(journal_path), memory_mib
    gc.freeze()  # what the fork server imported stays shared, and is not searched for garbage
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib * MIB, memory_mib * MIB))


def _close_alive_pipe() -> None:
    """So that workers end with the service, however that one ends.

    The fork server ends when no process holds this pipe open any more, and hands the pipe to each of
    its children. Held by a worker that hangs, it would keep the fork server alive after the service
    was killed. Without it the fork server ends with the service, and each worker with the fork
    server (die_with_parent). Python has no public name for it, and no way to start a child without.
    """
    alive = forkserver._forkserver._forkserver_alive_fd  # pyright: ignore[reportAttributeAccessIssue]
    os.close(alive)


CHECKERS = ("services.reward.workers.warm",)
LIBRARIES: Mapping[str, tuple[str, ...]] = {"services.reward.rules.mathematics": CHECKERS}
"""What modules of rules import only when they first judge."""


def preloads(spec: FunctionSpec) -> tuple[str, ...]:
    """Modules that the fork server imports once, so that fresh processes come in milliseconds.

    An operator's function is none of them, as what it imports may not survive a fork; but what
    most of them check with is.
    """
    module = spec.target.partition(":")[0]
    if not module.startswith(RULES):
        return CHECKERS
    return (module, *LIBRARIES.get(module, ()))


@cache
def _load(spec: FunctionSpec) -> LoadedFunction:
    for module in preloads(spec):  # the fork server keeps silent about what it cannot import
        importlib.import_module(module)
    return load_function(spec)


def load(spec: FunctionSpec, timeout: float) -> tuple[int, bool, bool] | str:
    """This process's id, one_by_one and splittable; or what is wrong with the function."""
    _set_deadline(timeout)
    try:
        loaded = _load(spec)
    except InputError as error:
        return str(error)
    except BaseException as error:
        return f"{spec.target}: cannot be loaded: {_describe(error)}"
    finally:
        _set_deadline(0)
    return os.getpid(), loaded.one_by_one, loaded.splittable


def judge(
    number: int, spec: FunctionSpec, batches: Sequence[Sequence[Sample]], timeout: float
) -> tuple[int, float]:
    """How many batches were judged, one at least, and in how many seconds; the outcomes stand in
    the journal."""
    loaded = _load(spec)
    _journal.begin(number)
    process, begin, num_judged = os.getpid(), time.perf_counter(), 0
    for batch in batches:
        if num_judged and time.perf_counter() - begin > STALL_SECONDS:
            break
        _set_deadline(timeout)
        try:
            line = encode_entry(loaded.judge_batch(batch), len(batch))
        except BaseException as error:
            if isinstance(error, NOT_THE_ANSWERS) and not isinstance(error, TimeoutError):
                line = encode_entry([Fault(_describe_fault(error))] * len(batch), len(batch))
            else:
                _end(process, encode_raised(_describe(error)))
        if os.getpid() != process:
            os._exit(0)  # a child that a function forked and did not end
        _journal.write(line)
        num_judged += 1
    _set_deadline(0)
    return num_judged, time.perf_counter() - begin


def _end(process: int, line: bytes) -> NoReturn:
    if os.getpid() == process:
        _journal.write(line)
    os._exit(EXIT_RAISED)


def _set_deadline(seconds: float) -> None:
    """0 for none. Set again each time, as functions may use the same timer."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _describe_fault(error: BaseException) -> str:
    return _describe(error) if isinstance(error, OSError) else str(error)


def _describe(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"the checker wanted more than {_memory_mib} MiB"
    try:
        text = str(error)
    except Exception:  # foreign code words it
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
