"""Stand-ins for an accelerator: a device made of host memory, and process groups that say after an
error what torch_npu's HCCL and torch's NCCL say, as their sources were read."""

import os
import sys
import threading
import types
from collections import defaultdict

import pytest
import torch

TIMEOUT = 30.0


class StandIn:
    """A device whose tensors do not lie in the host's buffer, made of host memory."""

    on_host = False
    kind = "stand-in"

    def __init__(self, backend: str = "gloo"):
        self.backend = backend
        self.threads = []
        self.streams = []
        self.locked = []
        """(address, bytes) of host memory, as long as it is."""

    def activate(self, index):
        self.threads.append((threading.current_thread().name, index))

    def use_own_stream(self):
        self.streams.append(threading.current_thread().name)

    def lock_pages(self, address, num_bytes, index):
        self.locked.append((address, num_bytes))
        return lambda: self.locked.remove((address, num_bytes))

    def torch_device(self, index):
        return torch.device("cpu")


class Wire:
    """What all groups of one test share."""

    def __init__(self):
        self.sent: dict[tuple[str, int], torch.Tensor] = {}
        self.failing: set[tuple[int, int]] = set()
        """(rank, number of its broadcast in the group, from 1)."""
        self.never_ending: set[tuple[int, int]] = set()
        self.events: dict[int, list[str]] = defaultdict(list)
        """By rank."""
        self.environments: list[dict[str, str]] = []
        """When each group was made."""
        self.may_end = threading.Event()
        """What the end of a group waits for."""
        self.may_end.set()


class Work:
    """Holds its communicator, but not its group."""

    def __init__(self, wire, rank, place, tensor):
        self._wire, self._rank, self._place, self._tensor = wire, rank, place, tensor
        self._failed = (rank, place[1]) in wire.failing
        self._ends = (rank, place[1]) not in wire.never_ending

    def is_completed(self):
        return self._failed or (self._ends and self._has_arrived())

    def _has_arrived(self):
        sent = self._wire.sent
        if self._rank == 0:
            sent.setdefault(self._place, self._tensor.clone())
        elif self._place in sent:
            self._tensor.copy_(sent[self._place])
        return self._place in sent


class HcclWork(Work):
    """After an error it is completed, not successful, and its wait says nothing."""

    def is_success(self):
        return not self._failed and self._has_arrived()

    def wait(self):
        return True


class NcclWork(Work):
    def is_success(self):
        raise NotImplementedError("WorkNCCL::isSuccess() is deprecated")

    def wait(self):
        if self._failed:
            raise RuntimeError("NCCL error: remote process exited or there was a network error")
        return True


def _process_group(wire: Wire, work: type[Work]) -> type:
    class ProcessGroup:
        class Options:
            pass

        def __init__(self, store, rank, size, options):
            wire.environments.append(dict(os.environ))
            self._rank = rank
            self._key = getattr(options, "group_id", "")
            self._number = 0
            self._record("made")

        def broadcast(self, tensors, options):
            self._number += 1
            self._record("broadcast")
            return work(wire, self._rank, (self._key, self._number), tensors[0])

        def shutdown(self):
            self._record("shutdown")

        def abort(self):
            self._record("abort")

        def abort_hccl_comm(self, reason):
            self._record("abort_hccl_comm")

        def __del__(self):
            wire.may_end.wait(TIMEOUT)
            self._record("freed")

        def _record(self, what):
            wire.events[self._rank].append(f"{what} {self._key}")

    return ProcessGroup


def install(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """What `MAKE_PROCESS_GROUP` finds for hccl and nccl until the test ends."""
    wire = Wire()
    path = "torch_npu._C._distributed_c10d"
    for end in range(len(path.split("."))):
        name = ".".join(path.split(".")[: end + 1])
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    hccl, nccl = (_process_group(wire, work) for work in (HcclWork, NcclWork))
    monkeypatch.setattr(sys.modules[path], "ProcessGroupHCCL", hccl, raising=False)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", nccl, raising=False)
    return wire
