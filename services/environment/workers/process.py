"""The service's end of the nursery and of its workers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from services.environment.workers.lines import encode_line
from trimaran.errors import InputError, UnavailableError
from trimaran.trust.credentials import is_credential

START_SECONDS = 60.0
"""For a process to start and to import the run's code."""
CAUSE_SECONDS = 2.0
"""For the nursery to say why a worker has ended."""
END_SECONDS = 8.0
"""For the nursery to kill all workers; longer than it gives itself."""
LINE_BYTES = 64 << 20
"""Of one answer."""
PACKET_BYTES = 1 << 16
MODULE = "services.environment.workers.nursery"

logger = logging.getLogger(__name__)


class NurseryProcess:
    """Starts workers.

    Example:
        nursery = await NurseryProcess.start(settings)
        worker = await nursery.start_worker()
        await nursery.close()
    """

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=worker_environment(os.environ),
                start_new_session=True,
            )
        loop = asyncio.get_running_loop()
        self._ours.setblocking(False)
        loop.add_reader(self._ours, self._read)
        self._prepared: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._started: dict[int, asyncio.Future[None]] = {}
        self._ended: dict[int, asyncio.Future[str]] = {}
        self.gone = False

    @classmethod
    async def start(cls, settings: Mapping[str, Any]) -> NurseryProcess:
        """Raises InputError for code that cannot be imported, UnavailableError where it does not start.

        Code that leaves threads behind when it is imported cannot be forked: then each worker imports it.
        """
        for preloads in (True, False):
            nursery = cls()
            try:
                answer = await nursery._prepare({**settings, "preloads": preloads})
            except BaseException:
                await nursery.close()
                raise
            if "refused" in answer:
                await nursery.close()
                raise InputError(answer["refused"])
            if answer["threads"] == 1 or not preloads:
                return nursery
            await nursery.close()
            logger.info(
                "the environment's code starts threads when it is imported: each process imports it"
            )
        raise AssertionError("not reached")

    async def start_worker(self) -> EnvironmentProcess:
        """Raises UnavailableError."""
        loop = asyncio.get_running_loop()
        number = len(self._ended)
        ours, theirs = socket.socketpair()
        started: asyncio.Future[None] = loop.create_future()
        self._started[number], self._ended[number] = started, loop.create_future()
        try:
            with theirs:
                self._send({"do": "start", "number": number}, [theirs.fileno()])
            async with asyncio.timeout(START_SECONDS):
                await started
            streams = await asyncio.open_connection(sock=ours, limit=LINE_BYTES)
        except TimeoutError:
            ours.close()
            self._process.kill()  # it is frozen; the next one takes its place
            raise UnavailableError(
                f"no process for an environment after {START_SECONDS:g} s; what starts them was killed"
            ) from None
        except BaseException:
            ours.close()
            raise
        return EnvironmentProcess(self, number, *streams)

    def kill(self, number: int) -> None:
        """And all that it has started. Its end is reported later."""
        with suppress(UnavailableError):  # the nursery is gone, and its workers with it
            self._send({"do": "kill", "number": number})

    async def cause(self, number: int) -> str:
        """Why a worker has ended."""
        done, _ = await asyncio.wait({self._ended[number]}, timeout=CAUSE_SECONDS)
        return done.pop().result() if done else "it hung up"

    def has_ended(self, number: int) -> bool:
        return self._ended[number].done()

    async def close(self) -> None:
        """Kills all workers."""
        self._hang_up()
        try:
            await asyncio.to_thread(self._process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    async def _prepare(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        self._send({"do": "prepare", **settings})
        try:
            async with asyncio.timeout(START_SECONDS):
                return await self._prepared
        except TimeoutError:
            raise InputError(
                f"the environment's code is not imported after {START_SECONDS:g} s; see what it waits for"
            ) from None

    def _send(self, order: Mapping[str, Any], fds: list[int] | None = None) -> None:
        try:
            socket.send_fds(self._ours, [json.dumps(order).encode()], fds or [])
        except OSError as error:
            raise UnavailableError(f"what starts environments does not answer: {error}") from None

    def _read(self) -> None:
        try:
            packet = self._ours.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._hang_up()
            return
        match json.loads(packet):
            case {"started": number}:
                if not self._started[number].done():
                    self._started[number].set_result(None)
            case {"ended": number, "cause": cause}:
                self._ended[number].set_result(cause)
            case answer:
                self._prepared.set_result(answer)

    def _hang_up(self) -> None:
        if self.gone:
            return
        self.gone = True
        asyncio.get_running_loop().remove_reader(self._ours)
        self._ours.close()
        lost = UnavailableError("what starts environments has ended")
        for waited in (self._prepared, *self._started.values()):
            if not waited.done():
                waited.set_exception(lost)
                waited.exception()  # nothing may wait for it
        for ended in self._ended.values():
            if not ended.done():
                ended.set_result("what had started it has ended")


class EnvironmentProcess:
    """Answers one request at a time.

    Example:
        answer = await worker.ask({"do": "call", "calls": [["add", '{"a": 1, "b": 2}']]})
    """

    def __init__(
        self,
        nursery: NurseryProcess,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._nursery, self._number = nursery, number
        self._reader, self._writer = reader, writer
        self._asking = False
        self.num_episodes = 0

    @property
    def usable(self) -> bool:
        """Whether it lives, and owes no answer."""
        return not self._asking and not self._nursery.has_ended(self._number)

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Raises UnavailableError where it dies, answers garbage, or says that its code has failed. Then,
        and when its caller is cancelled, it is of no more use."""
        self._asking = True
        try:
            self._writer.write(encode_line(request))
            await self._writer.drain()
            line = await self._reader.readline()
        except ValueError:
            raise UnavailableError(
                f"the environment's process answered more than {LINE_BYTES >> 20} MiB"
            ) from None
        except ConnectionError:
            line = b""
        if not line.endswith(b"\n"):
            cause = await self._nursery.cause(self._number)
            raise UnavailableError(f"the environment's process died ({cause})")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise UnavailableError(f"the environment's process answered garbage: {line[:100]!r}")
        if "fault" in answer:
            raise UnavailableError(f"the environment failed: {answer['fault']}")
        self._asking = False
        return answer

    def kill(self) -> None:
        """With all that it has started."""
        self._nursery.kill(self._number)
        self._writer.close()


def worker_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Without what is ours or secret."""
    return {
        name: value
        for name, value in inherited.items()
        if not name.startswith("TRIMARAN_") and not is_credential(name)
    }
