"""One end of a transfer group: a process group of one sender (rank 0) and its receivers.

It stands outside torch's default group, which belongs to the engine or to the
trainer's ranks, and is the same on gloo, nccl and hccl: of collectives only
broadcast is used, which every backend offers, also HCCL's communicator under
vLLM-Ascend (`process_groups.py` says why that one is not used). The sender
hosts the rendezvous on its host's address; only who knows the group's nonce
finds the others there, so that none joins a group of another time.

Collectives do not isolate faults: after any failure an end is closed for good
and the next version travels in a new group. A TCPStore client waits for ever for
a server that is frozen, and an accelerator's collectives want every call from a
thread that has the device current: so each end makes all its calls on one thread,
and its caller waits with a deadline.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch._C._distributed_c10d import Store
from torch.distributed import BroadcastOptions

from trimaran.errors import TransferError
from trimaran.host.call_thread import CallThread
from trimaran.host.device import Device
from trimaran.run.network import BACKLOG, Host, join
from trimaran.types import TransferGroup
from weights.memory.host_memory import HostMemory, lock_for_copies
from weights.transports.collective.gloo_work import GlooWork
from weights.transports.collective.process_groups import (
    IN_FLIGHT,
    MAKE_PROCESS_GROUP,
    end_process_group,
    end_work,
)
from weights.transports.collective.pump import Pump
from weights.transports.collective.rendezvous import (
    GroupStore,
    Rendezvous,
    connect_tcp_store,
    host_tcp_store,
)
from weights.transports.collective.terms import Terms
from weights.transports.collective.turns import GroupTurn, meet
from weights.transports.streams import Stream

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

GRACE_SECONDS = 2.0
CLOSE_SECONDS = 10.0
CONDEMNED_SECONDS = 0.2
"""The same for a group that has failed: the next one must not wait for it."""
DRAIN_SECONDS = 5.0
TURN_SECONDS = 10.0
"""What the group before this one may take to end; its members wait for us meanwhile."""
COPY_SECONDS = 5.0
"""What a copy may take to end when its transfer has."""
DRAIN_POLL_SECONDS = 0.05
DEVICE_POLL_SECONDS = 0.0002
"""A bucket of 64 MiB passes a link of 200 Gbit/s in 0.0027 s."""
SENDER = 0


_ABANDONED: list[Any] = []
"""Groups with the works that gloo never ended. A group that is dropped with work under way blocks
the whole interpreter, and a work holds the memory into which gloo may still write."""


class Collective:
    """Made by `host` on the sender; made as it is on a receiver. `close` it in the end."""

    def __init__(
        self,
        device: Device,
        index: int,
        address: str,
        group: TransferGroup,
        rank: int,
        turn: GroupTurn | None = None,
        grace: float = GRACE_SECONDS,
        drain: float = DRAIN_SECONDS,
    ) -> None:
        """Touches nothing yet: the first broadcast joins the group.

        `address`: of the interface on which this end listens. `turn`: of an accelerator's groups
        in this process. `grace`: seconds that torch may take beyond its own deadline before its
        thread is given up. `drain`: seconds that gloo may take beyond the deadline, which is its
        own too, to end the work under way.
        """
        self.group = group
        self.rank = rank
        self.healthy = True
        """False after any failure; nothing can travel through this end any more."""
        self._device = device
        self._index = index
        self._address = address
        self._grace = grace
        self._drain_seconds = drain
        self._rendezvous: Rendezvous | Store | None = None
        """The sender's server. Without it all that wait to join are released."""
        self._store: Store | None = None
        """What the process group finds the others by; it lives as long as the group."""
        self._process_group: Any = None
        self._thread = CallThread(f"transfer-{group.group_id}-rank-{rank}")
        self._turn = turn or GroupTurn()
        self._has_turn = False
        self._transfers = 0
        """Begun so far."""
        self._closed = False
        self._copying: Pump | None = None
        """One whose copy did not end with its transfer."""
        self._unended: list[Any] = []
        """Works that gloo was given up on."""

    @classmethod
    def host(
        cls,
        device: Device,
        index: int,
        host: Host,
        group: TransferGroup,
        timeout: float,
        turn: GroupTurn | None = None,
    ) -> Collective:
        """Rank 0, with its rendezvous open; `group` of the result holds its address.

        Raises TransferError when the address cannot be listened on.
        """
        try:
            listener = host.listen(backlog=max(BACKLOG, group.world_size))
        except OSError as error:
            raise TransferError(
                f"transfer group {group.group_id}: cannot listen on {host.address}"
                f" ({error.strerror}); check network.subnet"
            ) from None
        opened = replace(group, rendezvous=join(host.address, listener.getsockname()[1]))
        end = cls(device, index, host.address, opened, SENDER, turn)

        def run() -> None:
            if device.on_host:
                end._rendezvous = Rendezvous(listener, opened)
            else:
                end._rendezvous = host_tcp_store(listener, timeout)

        end._guarded("open its rendezvous", run, timeout)
        return end

    def broadcast(
        self,
        stream: Stream,
        terms: Terms,
        timeout: float,
        arrived: Callable[[int], None] = lambda end: None,
        memory: HostMemory | None = None,
    ) -> None:
        """Send the sender's stream into the receivers', one bucket after the other.

        First the sender says what it is about to send; a receiver whose own `terms`
        differ leaves the group before any of it moves. `memory`: where the stream's buffer lies,
        if that outlives the transfer; it is locked for the device's copies.

        `arrived(end)` is called when the stream's bytes before `end` are there: in order,
        on a thread that copies nothing meanwhile. Raises TransferError after `timeout`
        seconds or when any member fails; the group is then condemned.
        """
        deadline = time.monotonic() + timeout

        def run() -> None:
            if memory is not None:  # takes long once; the others wait at the meeting, on the host
                lock_for_copies(memory, self._device, self._index)
            self._begin(deadline)
            self._join(deadline)
            self._agree(terms, deadline)
            self._pump(stream, terms.bucket_bytes, deadline, arrived)
            self._end()

        self._guarded("broadcast", run, timeout)

    def give_up(self) -> None:
        """From another thread: a broadcast under way raises at once, and the group is condemned.

        torch's own calls end later, by their deadline.
        """
        self.healthy = False
        self._close_rendezvous()
        self._thread.give_up()

    @property
    def settled(self) -> bool:
        """Closed, and torch reads and writes nothing any more."""
        is_ended = all(work.is_completed() for work in self._unended)
        is_copied = self._copying is None or self._copying.settled
        return self._closed and not self._thread.alive and is_ended and is_copied

    def close(self) -> None:
        """Idempotent; a broadcast under way raises at once.

        Leaves no thread, descriptor or port behind unless torch itself hangs.
        """
        if self._closed:
            return
        self._closed = True
        if self._thread.busy:
            self.give_up()
        if not self._thread.stop(
            self._release, CLOSE_SECONDS if self.healthy else CONDEMNED_SECONDS
        ):
            logger.warning(
                "%s: torch is still waiting for a peer; left to its deadline", self._label
            )
        self.healthy = False

    @property
    def _label(self) -> str:
        return f"transfer group {self.group.group_id} rank {self.rank}"

    def _guarded(self, action: str, function: Callable[[], Result], timeout: float) -> Result:
        if not self.healthy:
            raise TransferError(f"{self._label}: closed; open a new group")
        try:
            return self._thread.call(function, timeout + self._grace)
        except Exception as error:
            self.healthy = False
            self.close()
            if not isinstance(error, (RuntimeError, OSError)):
                raise  # a fault of ours, not of the transfer
            seconds = f"{round(timeout, 1):g} s"  # what is left of a deadline: 0.998 of 1 s
            raise TransferError(
                f"{self._label}: could not {action} within {seconds}: {_first_line(error)}"
            ) from error

    def _begin(self, deadline: float) -> None:
        """Returns once this group may be used, and on an accelerator once all members are here."""
        if self._device.on_host:
            self._store = self._store or GroupStore(self.group, deadline)
            return
        self._turn.take(min(_left(deadline).total_seconds(), TURN_SECONDS))
        self._has_turn = True  # after a failure `_release` gives it back
        if self._store is None:
            self._store = connect_tcp_store(self.group, _left(deadline))
        self._transfers += 1
        meet(
            *(self._store, self.rank, self.group.world_size, self._transfers),
            check_alive=lambda: self._check_alive(deadline),
        )

    def _end(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._turn.give()

    def _join(self, deadline: float) -> None:
        if self._process_group is not None:
            return
        assert self._store is not None, "_begin connects it"
        self._device.activate(self._index)
        self._device.use_own_stream()
        make = MAKE_PROCESS_GROUP[self._device.backend]
        self._process_group = make(
            self._store, self.rank, self.group, self._address, _left(deadline)
        )

    def _agree(self, terms: Terms, deadline: float) -> None:
        """Raises TransferError on a receiver that expects something else than the sender sends."""
        mine = torch.frombuffer(bytearray(terms.encode()), dtype=torch.uint8)
        place = self._device.torch_device(self._index)
        said = mine.to(place) if self.rank == SENDER else torch.zeros_like(mine, device=place)
        self._wait(self._start(said, deadline), deadline)
        if self.rank != SENDER:
            terms.check(said.cpu().numpy().tobytes())

    def _pump(
        self, stream: Stream, bucket_bytes: int, deadline: float, arrived: Callable[[int], None]
    ) -> None:
        pump = Pump(
            *(stream, bucket_bytes, self._device, self._index, self._in_flight(stream)),
            start=lambda tensor: self._start(tensor, deadline),
            wait=lambda is_done: self._poll(is_done, deadline),
        )

        def finish(work: Any) -> None:
            self._wait(work, deadline)

        try:
            if self.rank == SENDER:
                pump.send(finish)
            else:
                pump.receive(finish, arrived)
        finally:
            pump.close(COPY_SECONDS)
            self._copying = None if pump.settled else pump
            if self._device.on_host:
                self._drain(pump.works, deadline)

    def _in_flight(self, stream: Stream) -> int:
        """Between two ends the kernel's buffers keep the link busy, and a second broadcast would only hold up the
        first. With more receivers one passes a bucket on while the next one comes."""
        is_pair = self._device.on_host and self.group.world_size == 2
        return 1 if is_pair and stream.view(0, stream.num_bytes) is not None else IN_FLIGHT

    def _drain(self, works: list[Any], deadline: float) -> None:
        """Returns once gloo has ended the works, as it does by the deadline.

        Raises TimeoutError soon after it; the works then stay with their group.
        """
        late = 0.0  # in our own turns: who stood still finds that gloo has stood still, too
        while not all(work.ends_within(DRAIN_POLL_SECONDS) for work in works):
            if late > self._drain_seconds:
                self._unended = works
                _ABANDONED.append((self._process_group, works))
                raise TimeoutError("gloo has not ended its work by the deadline")
            late += DRAIN_POLL_SECONDS if time.monotonic() > deadline else 0.0

    def _start(self, tensor: torch.Tensor, deadline: float) -> Any:
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = SENDER, 0
        options.timeout = _left(deadline)
        work = self._process_group.broadcast([tensor], options)
        return GlooWork(work) if self._device.on_host else work

    def _wait(self, work: Any, deadline: float) -> None:
        """Not inside torch: an accelerator's wait() only queues, and the copy after it would block
        for ever; and a thread that is inside torch when the process ends brings it down with an abort.

        Raises RuntimeError when the work has failed.
        """
        if self._device.on_host:
            self._drain([work], deadline)
        self._poll(work.is_completed, deadline)
        end_work(self._device.backend, work)

    def _poll(self, is_done: Callable[[], bool], deadline: float) -> None:
        while not is_done():
            self._check_alive(deadline)
            time.sleep(DEVICE_POLL_SECONDS)

    def _check_alive(self, deadline: float) -> None:
        if not self.healthy:
            raise TimeoutError("given up by its caller")
        _left(deadline)

    def _close_rendezvous(self) -> None:
        rendezvous, self._rendezvous = self._rendezvous, None
        if isinstance(rendezvous, Rendezvous):
            rendezvous.close()

    def _release(self) -> None:
        self._close_rendezvous()
        process_group, self._process_group, self._store = self._process_group, None, None
        try:
            if process_group is not None and not self._device.on_host:
                end_process_group(self._device.backend, process_group, abort=not self.healthy)
            del process_group
        finally:
            self._end()


def _left(deadline: float) -> timedelta:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the deadline passed")
    return timedelta(seconds=seconds)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
