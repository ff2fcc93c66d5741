"""Who of the recorded replicas is still there, when weight sync starts."""

import asyncio

from services.weight_sync.members.former_life import find_gone
from services.weight_sync.members.members import Members
from trimaran.types import Peer, Replica


def test_a_host_that_does_not_answer_is_not_waited_for(monkeypatch):
    async def hang(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", hang)
    members = Members()
    for name in "ab":
        members.register(Replica(name, "127.0.0.1:1"), Peer("127.0.0.1:1", "key", ""), 0.0)
    assert len(asyncio.run(find_gone(members, timeout=0.05))) == 2
