"""The weight plane's own work at 70 and 235 billion parameters, with 64 replicas and no tensors.

The models are stand-ins (`large.py`): manifests of the true count and shapes. Weight sync's
coordinator and store are the real ones, and so are its clients; a replica that answers at once is
behind them. Relay and receivers are real too, and move blocks of one byte: what is left is what a
block costs besides its bytes.
"""

from __future__ import annotations

import asyncio
import os
import time
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from benchmarks.results_file import Row
from benchmarks.weights.control_side import StandInTrainer
from benchmarks.weights.large import MODELS, LargeModel, manifest_of, offers_of, peer_of
from benchmarks.weights.overlap import Overlap
from benchmarks.weights.transfer_model import (
    BUS,
    CORES,
    LINK,
    PAGEABLE,
    calibrate,
    calibrate_add,
    calibrate_digest,
    model_collective,
    model_devices,
    model_devices_in_turn,
    model_relay,
    model_snapshot,
    model_snapshot_in_turn,
)
from benchmarks.weights.versions import RUN_ID
from services.weight_sync.coordinator import Coordinator
from services.weight_sync.ledger import VersionLedger
from services.weight_sync.members.member import Member
from services.weight_sync.staging.transfer_plan import plan_relay, plan_stage
from trimaran.clients import RolloutClient
from trimaran.config import WeightSyncSection
from trimaran.host.device import Device
from trimaran.store.sqlite import SqliteStore
from trimaran.types import (
    Caller,
    Manifest,
    Offer,
    Peer,
    PolicyVersion,
    RelaySource,
    Replica,
    Staged,
    TensorInfo,
    TransferLimits,
    VersionId,
)
from trimaran.v1 import rollout_pb2, types_pb2
from trimaran.wire import messages as wire
from trimaran.wire import rpc
from weights.receiving.receiver import WeightReceiver
from weights.transports.relay.relay_server import RelayServer
from weights.transports.relay.stock import Holding, Stock
from weights.version.layout import make_layout
from weights.version.manifest import (
    build_manifest,
    check_manifest,
    digest_bytes,
    list_digests,
    num_bytes,
)

REPLICAS = 64
DEVICES_A_HOST = 8
FAN_OUT = WeightSyncSection().relay_fan_out
TIMEOUT_SECONDS = 200.0
SERVICE = "trimaran.v1.RolloutService"


def measure_scale(model: Path, work: Path) -> tuple[list[Row], str]:
    rates = Rates(calibrate(), calibrate_digest(), calibrate_add())
    digest, in_turn, overlapped = Overlap().measure()
    measured = {
        "landing_rate": rates.landing,
        "digest_rate": rates.digest,
        "plus_zero_rate": rates.add,
        "receiver_digest_rate": digest,
        "receiver_in_turn": in_turn,
        "receiver_overlapped": overlapped,
    }
    rows = [
        *(Row(name, value / 1e9, "GB/s", None, True) for name, value in measured.items()),
        *(row for large in MODELS for row in _measure(large, work / large.name, rates)),
    ]
    return rows, (
        f"stand-ins of the true count and shapes, {REPLICAS} replicas; no weights move. Seconds of"
        " a publication are CPU seconds of weight sync and of its stand-in replica's gRPC in one"
        " process; those of a stage are of one process with a holder and two receivers in a chain,"
        " whose blocks have one byte. Shadows are sums of the layout. Rows named model_ are no"
        " measurement: bytes over the rates of one thread, and an assumed link of"
        f" {LINK / 1e9:g} GB/s, {CORES} cores, and copies between a device and the host at"
        f" {BUS / 1e9:g} GB/s, {PAGEABLE / 1e9:g} where memory is not locked (transfer_model.py)."
        " Those named receiver_ are one receiver's, with clocks of receiver_digest_rate for link and"
        " bus (overlap.py). Load at the end:"
        f" {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second of one thread; `transfer_model` measures them."""

    landing: float
    digest: float
    add: float


def _measure(large: LargeModel, work: Path, rates: Rates) -> list[Row]:
    work.mkdir()
    tracemalloc.start()
    manifest = manifest_of(large)
    in_memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    offers = offers_of(large, manifest)
    encoded = wire.encode_manifest(manifest).SerializeToString()
    size = make_layout(manifest.tensors).num_bytes
    shadows = DEVICES_A_HOST // large.devices * size
    relay = model_relay(size, large.num_senders, FAN_OUT, rates.landing)
    figures: list[tuple[str, float, str]] = [
        ("blocks", manifest.num_blocks, "blocks"),
        ("weights", sum(map(num_bytes, manifest.tensors)) / 1e9, "GB"),
        ("manifest", len(encoded) / 1e6, "MB"),
        ("manifest_in_memory", in_memory / 2**20, "MiB"),
        ("decode_and_check", _seconds(lambda: _take_manifest(encoded)), "s"),
        *_plans(manifest, offers),
        *asyncio.run(_publish(large, work)),
        *_stages(large, manifest),
        ("shadows_a_host", shadows / 1e9, "GB"),
        ("shadows_on_the_keepers_host", (shadows + size) / 1e9, "GB"),
        ("model_stage_collective", model_collective(size, large.num_senders, rates.landing), "s"),
        ("model_stage_relay", relay, "s"),
        *_model_devices(size, large.num_senders, rates),
    ]
    return [Row(f"{large.name}_{name}", value, unit, None, False) for name, value, unit in figures]


def _model_devices(size: int, num_senders: int, rates: Rates) -> list[tuple[str, float, str]]:
    digest = rates.digest
    found = {
        "stage_devices": model_devices(size, num_senders, digest, locked=True),
        "stage_devices_unlocked": model_devices(size, num_senders, digest, locked=False),
        "stage_devices_in_turn": model_devices_in_turn(size, num_senders, digest),
        "snapshot_devices": model_snapshot(size, num_senders, digest, locked=True),
        "snapshot_devices_in_turn": model_snapshot_in_turn(size, num_senders, digest, rates.add),
    }
    return [(f"model_{name}", seconds, "s") for name, seconds in found.items()]


def _take_manifest(data: bytes) -> None:
    """What a replica does with it before anything moves."""
    manifest = wire.decode_manifest(types_pb2.Manifest.FromString(data))
    check_manifest(manifest, manifest.root)


def _plans(manifest: Manifest, offers: Sequence[Offer]) -> list[tuple[str, float, str]]:
    members = [
        Member(Replica(f"rollout-{n}", "127.0.0.1:1"), peer_of(f"rollout-{n}"), 1)
        for n in range(REPLICAS)
    ]
    half = REPLICAS // 2
    plans: dict[str, Callable[[], Any]] = {
        "collective": lambda: plan_stage(manifest, offers, members, "collective", FAN_OUT),
        "relay": lambda: plan_stage(manifest, offers, members, "relay", FAN_OUT),
        "half_to_half": lambda: plan_relay(
            manifest, offers, members[half:], members[:half], FAN_OUT
        ),
    }
    return [(f"plan_{name}", _seconds(plan), "s") for name, plan in plans.items()]


async def _publish(large: LargeModel, work: Path) -> list[tuple[str, float, str]]:
    """To replicas that are proven at a small version already; then one more joins."""
    small = build_manifest([_small(TensorInfo("w", "U8", (1,)))])
    manifest = manifest_of(large)
    offers = offers_of(large, manifest)
    senders: dict[int, list[Any]] = {
        1: [StandInTrainer(small, 1)],
        3: [StandInTrainer(manifest, 3, offer) for offer in offers],  # odd: no sample behind it
    }
    step = 1
    # Without our fence and metrics: they are the replicas' work, on other hosts.
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", rpc.MAX_MESSAGE_BYTES)])
    _StandIn([small, manifest]).add_to(server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    store = SqliteStore(work / "store.sqlite")
    caller = Caller(RUN_ID, await store.next_epoch(RUN_ID))
    coordinator = Coordinator(
        RUN_ID,
        WeightSyncSection(  # nobody sends heartbeats here
            stage_timeout=TIMEOUT_SECONDS,
            prove_timeout=TIMEOUT_SECONDS,
            heartbeat_timeout=4 * TIMEOUT_SECONDS,
        ),
        await VersionLedger.open(store, RUN_ID),
        connect_senders=lambda caller: senders[step],
        connect_rollout=lambda replica, caller: RolloutClient(replica.address, caller),
    )
    coordinator.start()

    async def register(number: int) -> None:
        name = f"rollout-{number}"
        await coordinator.register(RUN_ID, Replica(name, address), peer_of(name))

    async def until_routable(count: int) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(coordinator.routing().routable) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(coordinator.routing().describe_unroutable()[:500])
            await asyncio.sleep(0.05)

    try:
        for number in range(REPLICAS):
            await register(number)
        await coordinator.publish(caller, senders[step][0].version)
        await until_routable(REPLICAS)
        step = 3
        began = time.process_time()
        await coordinator.publish(caller, senders[step][0].version)
        published = time.process_time()
        await register(REPLICAS)
        await until_routable(REPLICAS + 1)
        joined = time.process_time()
    finally:
        await coordinator.close()
        await server.stop(None)
    return [
        ("publish_cpu", published - began, "s"),
        ("join_with_full_proof_cpu", joined - published, "s"),
    ]


class _StandIn:
    """Every replica at once. It takes requests apart only as far as it must."""

    def __init__(self, versions: Sequence[Manifest]) -> None:
        self._versions = {m.root: m for m in versions}
        self._live = versions[0]

    def add_to(self, server: Any) -> None:
        answers = {"StageWeights": self._stage, "CommitWeights": self._commit}
        methods = {
            name: grpc.unary_unary_rpc_method_handler(answer) for name, answer in answers.items()
        }
        methods["ReadBack"] = grpc.unary_unary_rpc_method_handler(
            self._read_back, rollout_pb2.ReadBackRequest.FromString
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))

    async def _stage(self, request: bytes, context: Any) -> bytes:
        # The root stands in the version, in front of the manifest.
        root = next(root for root in self._versions if root.encode() in request[:4096])
        self._live = self._versions[root]
        staged = wire.encode_staged(Staged(root, self._live.num_blocks, {}, "/shadow"))
        return rollout_pb2.StageWeightsResponse(staged=staged).SerializeToString()

    async def _commit(self, request: bytes, context: Any) -> bytes:
        return rollout_pb2.CommitWeightsResponse().SerializeToString()

    async def _read_back(self, request: Any, context: Any) -> bytes:
        digests = list_digests(self._live)
        found = [d for first, end in wire.decode_ranges(request.blocks) for d in digests[first:end]]
        answer = rollout_pb2.ReadBackResponse(digests=wire.encode_digests(found))
        return answer.SerializeToString()


def _stages(large: LargeModel, manifest: Manifest) -> list[tuple[str, float, str]]:
    """A holder with everything, a receiver that pulls from it, and one that pulls from that one."""
    tensors = [_small(info) for info in manifest.tensors]
    small = build_manifest(tensors)
    offers = offers_of(large, manifest)
    # Without a limit on those served at a time: what a block costs is looked for here.
    config = WeightSyncSection(relay_fan_out=4 * len(offers), stage_timeout=TIMEOUT_SECONDS)
    stock = Stock()
    byte = memoryview(b"\0")
    stock.show({(small.root, ""): Holding(dict.fromkeys(range(small.num_blocks), byte))})
    holder = RelayServer(config, "key", stock)
    receivers = [WeightReceiver(Device("cpu", "gloo"), 0, config) for _ in range(2)]
    holder.start()
    for receiver in receivers:
        receiver.start()
    chain = [Peer(holder.address, "key", ""), *(receiver.peer for receiver in receivers)]
    version = PolicyVersion(RUN_ID, VersionId(0, 1), small.root)
    limits = TransferLimits(bucket_bytes=1 << 20, timeout=TIMEOUT_SECONDS)

    def stage(place: int) -> None:
        sources = [RelaySource(offer.blocks, (chain[place], chain[0])) for offer in offers]
        receivers[place].stage(version, small, sources, limits)

    try:
        before, wall = time.process_time(), time.perf_counter()
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(stage, range(2)))
        cpu, wall = time.process_time() - before, time.perf_counter() - wall
    finally:
        for receiver in receivers:
            receiver.close()
        holder.close()
    return [("stage_bookkeeping_cpu", cpu, "s"), ("stage_bookkeeping", wall, "s")]


def _small(info: TensorInfo) -> TensorInfo:
    """As many blocks, of one byte each."""
    count = info.num_blocks
    digest = digest_bytes(b"\0")
    return replace(
        info, dtype="U8", shape=(count,), axis=0, cuts=tuple(range(1, count)),
        digests=(digest,) * count,
    )  # fmt: skip


def _seconds(work: Callable[[], Any], rounds: int = 3) -> float:
    found: list[float] = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return min(found)
