"""One end of a transfer group: a process group of one sender (rank 0) and its receivers.

It stands outside torch's default group, which belongs to the engine or to the
trainer's ranks, and is the same on gloo, nccl and hccl: only broadcast is
used. The sender hosts the rendezvous, on loopback; group id and nonce stand
in front of every key, so that nobody joins a group of another time.

Collectives do not isolate faults: after any failure an end is closed for good
and the next version travels in a new group.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import BroadcastOptions, ProcessGroupGloo

from services.weight_sync.calls import CallThread
from trimaran.device import Device
from trimaran.errors import TransferError
from trimaran.types import TransferGroup

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Span = tuple[int, int]

LOOPBACK = "127.0.0.1"
IN_FLIGHT = 2
"""Buckets under way at the same time: one is copied or digested while the other travels."""
GRACE_SECONDS = 2.0
"""What torch may take beyond its own deadline before its thread is given up."""
CLOSE_SECONDS = 10.0
CONDEMNED_SECONDS = 0.2
"""The same for a group that has failed: whoever waits for the next one must not wait for this one."""
POLL_SECONDS = 0.0005
SENDER = 0


class Collective:
    """Made by `host` on the sender; made as it is on a receiver. `close` it in the end."""

    def __init__(self, device: Device, index: int, group: TransferGroup, rank: int) -> None:
        """Touches nothing yet: the first broadcast joins the group."""
        self.group = group
        self.rank = rank
        self.healthy = True
        """False after any failure; nothing can travel through this end any more."""
        self._device = device
        self._index = index
        self._rendezvous: Store | None = None
        """The sender's server. Dropping it releases everybody who waits to join."""
        self._process_group: Any = None
        self._thread: CallThread | None = CallThread(f"transfer-{group.group_id}-rank-{rank}")

    @classmethod
    def host(cls, device: Device, index: int, group: TransferGroup, timeout: float) -> Collective:
        """Rank 0, with its rendezvous open; `group` of the result holds its address."""
        listener = socket.create_server((LOOPBACK, 0), backlog=max(64, group.world_size))
        address = f"{LOOPBACK}:{listener.getsockname()[1]}"
        opened = TransferGroup(group.group_id, group.nonce, group.world_size, address)
        end = cls(device, index, opened, SENDER)

        def run() -> None:
            end._rendezvous = _host_store(listener, timeout)

        end._guarded("open its rendezvous", run, timeout)
        return end

    def broadcast(
        self,
        buffer: torch.Tensor,
        spans: Sequence[Span],
        timeout: float,
        arrived: Callable[[int], None] | None = None,
    ) -> None:
        """Send the sender's buffer (uint8, host) into the receivers', one span after the other.

        `arrived(end)` is called, on the group's own thread, when the bytes
        before `end` are there. Raises TransferError after `timeout` seconds or
        when any member fails; the group is then condemned.
        """
        deadline = time.monotonic() + timeout

        def run() -> None:
            self._join(deadline)
            self._pump(buffer, spans, deadline, arrived or (lambda end: None))

        self._guarded("broadcast", run, timeout)

    def give_up(self) -> None:
        """From another thread: a broadcast under way raises at once, and the group is condemned.

        torch's own calls end later, by their deadline.
        """
        self.healthy = False
        self._rendezvous = None
        if (thread := self._thread) is not None:
            thread.give_up()

    def close(self) -> None:
        """Idempotent. Leaves no thread, descriptor or port behind unless torch itself hangs."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        if not thread.stop(self._release, CLOSE_SECONDS if self.healthy else CONDEMNED_SECONDS):
            logger.warning(
                "%s: torch is still waiting for a peer; left to its deadline", self._label
            )
        self.healthy = False

    @property
    def _label(self) -> str:
        return f"transfer group {self.group.group_id} rank {self.rank}"

    def _guarded(self, action: str, function: Callable[[], Result], timeout: float) -> Result:
        if not self.healthy or self._thread is None:
            raise TransferError(f"{self._label}: closed; open a new group")
        try:
            return self._thread.call(function, timeout + GRACE_SECONDS)
        except Exception as error:
            self.healthy = False
            self.close()
            if not isinstance(error, (RuntimeError, OSError)):
                raise  # a fault of ours, not of the transfer
            raise TransferError(
                f"{self._label}: could not {action} within {timeout:g} s: {_first_line(error)}"
            ) from error

    def _join(self, deadline: float) -> None:
        if self._process_group is not None:
            return
        self._device.activate(self._index)
        store = _connect_store(self.group.rendezvous, _left(deadline))
        store = PrefixStore(f"trimaran/{self.group.group_id}/{self.group.nonce}", store)
        store.set_timeout(_left(deadline))
        make = MAKE_PROCESS_GROUP[self._device.backend]
        self._process_group = make(store, self.rank, self.group, _left(deadline))

    def _pump(
        self,
        buffer: torch.Tensor,
        spans: Sequence[Span],
        deadline: float,
        arrived: Callable[[int], None],
    ) -> None:
        staging = self._make_staging(spans)
        pending: deque[tuple[Span, torch.Tensor, Any]] = deque()

        def finish() -> None:
            (start, end), bucket, work = pending[0]
            self._wait(work, deadline)
            if staging is not None and self.rank != SENDER:
                buffer[start:end].copy_(bucket)
            arrived(end)
            pending.popleft()

        try:
            for number, (start, end) in enumerate(spans):
                piece = buffer[start:end]
                bucket = piece if staging is None else staging[number % IN_FLIGHT][: end - start]
                if staging is not None and self.rank == SENDER:
                    bucket.copy_(piece)
                pending.append(((start, end), bucket, self._start(bucket, deadline)))
                if len(pending) == IN_FLIGHT:
                    finish()
            while pending:
                finish()
        finally:
            # A gloo group that is dropped with work under way blocks the whole interpreter.
            while self._device.on_host and not all(work.is_completed() for _, _, work in pending):
                time.sleep(POLL_SECONDS)

    def _make_staging(self, spans: Sequence[Span]) -> list[torch.Tensor] | None:
        """Buckets on the device; None where the host's own buffer can travel."""
        if self._device.on_host:
            return None
        size = max((end - start for start, end in spans), default=0)
        device = self._device.torch_device(self._index)
        return [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(IN_FLIGHT)]

    def _start(self, tensor: torch.Tensor, deadline: float) -> Any:
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = SENDER, 0
        options.timeout = _left(deadline)
        return self._process_group.broadcast([tensor], options)

    def _wait(self, work: Any, deadline: float) -> None:
        """Looked at again and again instead of waited for inside torch.

        An accelerator's wait() only queues, and the copy after it would block
        for ever; and a thread that is inside torch when the process ends
        brings it down with an abort. gloo ends its work by the deadline.
        """
        while not work.is_completed():
            if not self._device.on_host:
                self._check_alive(deadline)
            time.sleep(POLL_SECONDS)
        work.wait()

    def _check_alive(self, deadline: float) -> None:
        if not self.healthy:
            raise TimeoutError("given up by its caller")
        _left(deadline)

    def _release(self) -> None:
        process_group, self._process_group, self._rendezvous = self._process_group, None, None
        if process_group is not None and not self._device.on_host:
            _end_process_group(process_group, abort=not self.healthy)


def _left(deadline: float) -> timedelta:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the deadline passed")
    return timedelta(seconds=seconds)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _host_store(listener: socket.socket, timeout: float) -> Store:
    host, port = listener.getsockname()
    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # the store closes it
    )


def _connect_store(address: str, timeout: timedelta) -> Store:
    host, _, port = address.rpartition(":")
    # TCPStore would try a closed port again and again; closed, it means that the group is gone.
    socket.create_connection((host, int(port)), timeout.total_seconds()).close()
    return TCPStore(host, int(port), is_master=False, timeout=timeout, wait_for_workers=False)


def _make_gloo(store: Store, rank: int, group: TransferGroup, timeout: timedelta) -> Any:
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._threads = IN_FLIGHT
    # Named, because gloo otherwise listens on whatever address the host's name has.
    options._devices = [ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    return ProcessGroupGloo(store, rank, group.world_size, options)


def _make_nccl(store: Store, rank: int, group: TransferGroup, timeout: timedelta) -> Any:
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout + WATCHDOG_MARGIN
    return ProcessGroupNCCL(store, rank, group.world_size, options)


def _make_hccl(store: Store, rank: int, group: TransferGroup, timeout: timedelta) -> Any:
    """As torch_npu 2.10 makes its own (torch_npu/_init/registry/distributed.py)."""
    from torch_npu._C._distributed_c10d import ProcessGroupHCCL  # pyright: ignore

    options = ProcessGroupHCCL.Options()
    options.is_high_priority_stream = False
    options._timeout = timeout + WATCHDOG_MARGIN
    options.global_ranks_in_group = list(range(group.world_size))
    options.group_id = f"trimaran-{group.group_id}-{group.nonce}"
    return ProcessGroupHCCL(store, rank, group.world_size, options)


WATCHDOG_MARGIN = timedelta(minutes=10)
"""An accelerator group's watchdog ends the whole process; our own deadline and abort come first."""
MAKE_PROCESS_GROUP: dict[str, Callable[[Store, int, TransferGroup, timedelta], Any]] = {
    "gloo": _make_gloo,
    "nccl": _make_nccl,
    "hccl": _make_hccl,
}


def _end_process_group(process_group: Any, abort: bool) -> None:
    if not abort:
        process_group.shutdown()
    elif hasattr(process_group, "abort_hccl_comm"):
        process_group.abort_hccl_comm("trimaran")
    else:
        process_group.abort()
