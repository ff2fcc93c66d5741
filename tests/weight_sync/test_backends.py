"""The nccl and hccl branches against recorded facts, and the path through device buckets on gloo."""

import json
import sys
import threading
import types
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.weight_sync.accelerators import StandIn
from tests.weight_sync.ends import LONG, TENSORS, make_snapshot
from trimaran.errors import TransferError
from trimaran.run.network import LOOPBACK
from trimaran.types import TransferGroup
from weights.transports.collective import endpoint as collective
from weights.transports.collective.endpoint import Collective
from weights.transports.collective.process_groups import MAKE_PROCESS_GROUP, end_process_group
from weights.transports.collective.terms import Terms
from weights.transports.streams import Stream
from weights.version.layout import make_layout

FACTS = json.loads((Path(__file__).parents[1] / "trimaran" / "device_facts.json").read_text())
GROUP = TransferGroup(7, "nonce", 3, "127.0.0.1:1")
STORE: Any = "store"


class FakeProcessGroup:
    """Of either library."""

    class Options:
        pass

    def __init__(self, store, rank, size, options):
        self.arguments = {"store": store, "rank": rank, "size": size, "options": options}
        self.events = []

    def shutdown(self):
        self.events.append("shutdown")

    def abort_hccl_comm(self, reason):
        self.events.append("abort_hccl_comm")

    def abort(self):
        self.events.append("abort")


def test_hccl_is_made_as_torch_npu_makes_it(monkeypatch):
    facts = FACTS["npu"]["process_group"]
    module_name, _, class_name = facts["class"].rpartition(".")
    parents = module_name.split(".")
    for depth in range(1, len(parents) + 1):
        name = ".".join(parents[:depth])
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules[module_name], class_name, FakeProcessGroup, raising=False)

    made = MAKE_PROCESS_GROUP["hccl"](STORE, 1, GROUP, "127.0.0.1", timedelta(seconds=5))
    assert list(made.arguments) == facts["arguments"]
    options = made.arguments.pop("options")
    assert made.arguments == {"store": STORE, "rank": 1, "size": 3}
    assert sorted(vars(options)) == sorted(facts["options"])
    assert options.global_ranks_in_group == [0, 1, 2]
    assert (options.group_id, options.is_high_priority_stream) == ("trimaran-7-nonce", False)
    end_process_group("hccl", made, abort=False)
    end_process_group("hccl", made, abort=True)
    assert made.events == facts["ends_with"]


def test_nccl_outlives_our_deadline(monkeypatch):
    """Our own deadline must come before that of its watchdog."""
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", FakeProcessGroup, raising=False)
    made = MAKE_PROCESS_GROUP["nccl"](STORE, 2, GROUP, "127.0.0.1", timedelta(seconds=5))
    assert made.arguments["options"]._timeout > timedelta(minutes=1)
    end_process_group("nccl", made, abort=True)
    assert made.events == ["abort"]


@pytest.mark.parametrize("num_buckets", [1, 2, 5])
@pytest.mark.parametrize("wanted", [((0, 9),), ((1, 3), (6, 8))])
def test_device_buckets_carry_every_byte(monkeypatch, num_buckets, wanted):
    # An accelerator's group is shut down; gloo's ends with its last reference.
    monkeypatch.setattr(collective, "end_process_group", lambda *_, abort: None)
    device: Any = StandIn()
    snapshot = make_snapshot()
    layout = snapshot.layout
    target = make_layout(TENSORS, wanted)
    received = torch.zeros(target.num_bytes, dtype=torch.uint8)
    size = -(-layout.num_bytes // num_buckets)
    sender = Collective.host(device, 4, LOOPBACK, TransferGroup(1, "nonce", 2, ""), LONG)
    receiver = Collective(device, 4, "127.0.0.1", sender.group, 1)
    terms = Terms.of(snapshot.manifest.root, "", layout, size)
    ends = []
    thread = threading.Thread(
        target=receiver.broadcast,
        args=(Stream(layout, received, target), terms, LONG, ends.append),
        daemon=True,
    )
    thread.start()
    stream = Stream(layout, snapshot.buffer, layout)
    sender.broadcast(stream, terms, LONG)
    thread.join(LONG)
    places = layout.by_number()
    for piece in target.pieces:
        there = places[piece.block.number]
        expected = snapshot.buffer[there.start : there.end]
        assert torch.equal(received[piece.start : piece.end], expected)
    assert len(ends) == num_buckets and ends[-1] == layout.num_bytes
    # Those of the group and those that copy: each with the device current and a stream of its own.
    ends_of_group = [(f"transfer-1-rank-{rank}", 4) for rank in (0, 1)]
    assert sorted(device.threads) == [*ends_of_group, *2 * [("transfer-copies", 4)]]
    assert sorted(device.streams) == [name for name, _ in sorted(device.threads)]
    sender.close()
    receiver.close()
    with pytest.raises(TransferError, match="closed; open a new group"):
        sender.broadcast(stream, terms, LONG)
