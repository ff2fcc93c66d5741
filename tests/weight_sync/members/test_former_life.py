"""Who of the recorded replicas is still there, when weight sync starts."""

import asyncio
import socket

from services.weight_sync.members.former_life import find_gone
from services.weight_sync.members.members import Members
from trimaran.types import Peer, Replica


def test_who_takes_no_connection_any_more_is_gone():
    frozen = socket.create_server(("127.0.0.1", 0))  # nobody accepts
    closed = socket.create_server(("127.0.0.1", 0))
    addresses = {
        "frozen": f"127.0.0.1:{frozen.getsockname()[1]}",
        "closed": f"127.0.0.1:{closed.getsockname()[1]}",
        "nonsense": "nowhere",
    }
    closed.close()
    members = Members()
    for name, relay in addresses.items():
        members.register(Replica(name, "127.0.0.1:1"), Peer(relay, "key", ""), 0.0)
    gone = asyncio.run(find_gone(members))
    frozen.close()
    assert [member.name for member in gone] == ["closed", "nonsense"]


def test_a_host_that_does_not_answer_is_not_waited_for(monkeypatch):
    async def hang(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", hang)
    members = Members()
    for name in "ab":
        members.register(Replica(name, "127.0.0.1:1"), Peer("127.0.0.1:1", "key", ""), 0.0)
    assert len(asyncio.run(find_gone(members, timeout=0.05))) == 2
