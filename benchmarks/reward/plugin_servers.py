"""`python -m benchmarks.reward.plugin_servers`: 64 reward plugins on ports of their own.

Prints one line of JSON, kind -> ports, and serves until its standard input ends. Good plugins
answer after 100 ms, slow ones later than any deadline or byte by byte, failing ones with errors and
broken connections, lying ones with what the contract does not say.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

WORK_SECONDS = 0.1
"""What a good plugin takes for a call, without using the CPU."""
INFO = {"contract": "trimaran.reward/1", "name": "bench"}

Reply = Callable[[asyncio.StreamWriter, int], Awaitable[None]]
"""Writes the answer for so many samples."""


def _http(body: bytes, status: int = 200) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _scores(results: object) -> bytes:
    return _http(json.dumps({"contract": "trimaran.reward/1", "results": results}).encode())


async def good(writer: asyncio.StreamWriter, count: int) -> None:
    await asyncio.sleep(WORK_SECONDS)
    writer.write(_scores([{"score": 1.0}] * count))


async def late(writer: asyncio.StreamWriter, count: int) -> None:
    await asyncio.sleep(60)


async def byte_by_byte(writer: asyncio.StreamWriter, count: int) -> None:
    for byte in _scores([{"score": 1.0}] * count):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.2)


async def hang_up(writer: asyncio.StreamWriter, count: int) -> None:
    writer.transport.abort()


def saying(content: bytes) -> Reply:
    async def reply(writer: asyncio.StreamWriter, count: int) -> None:
        await asyncio.sleep(WORK_SECONDS)
        writer.write(content)

    return reply


KINDS: dict[str, list[Reply]] = {
    "good": [good] * 40,
    "slow": [late, byte_by_byte] * 4,
    "failing": [saying(_http(b"broken", 500)), hang_up] * 2
    + [saying(_http(b"busy", 503)), saying(b"220 mail\r\n")] * 2,
    "lying": [
        saying(_scores([{"score": 1.0}])),
        saying(_scores({"score": 1.0})),
        saying(_scores([{"score": float("nan")}] * 8)),
        saying(_scores([{"score": "1.0"}] * 8)),
        saying(_http(b"<html>")),
        saying(_http(b"[" * 100_000)),
        saying(_http(b" " * (16 << 20))),
        saying(_http(json.dumps(INFO).encode())),
    ],
}


async def _serve(reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if head.startswith(b"GET"):
                writer.write(_http(json.dumps(INFO).encode()))
                continue
            size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            body = await reader.readexactly(size)
            await reply(writer, len(json.loads(body)["samples"]))
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # the client left
    finally:
        writer.close()


async def main() -> None:
    ports: dict[str, list[int]] = {}
    for kind, replies in KINDS.items():
        for reply in replies:
            server = await asyncio.start_server(
                lambda reader, writer, reply=reply: _serve(reply, reader, writer), "127.0.0.1", 0
            )
            ports.setdefault(kind, []).append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
