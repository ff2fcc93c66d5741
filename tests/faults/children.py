"""The house's processes: the real services, with places at which they carry out orders.

The trainer's policy and (unless it is vLLM) the replica's engine stand in for
real ones. Everything between them is the code that a run uses.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from services.controller import server as controller
from services.controller.loop import Loop
from services.rollout import server as rollout
from services.trainer import rank as trainer_rank
from services.trainer import server as trainer
from services.weight_sync import server as weight_sync
from services.weight_sync.ledger import VersionLedger
from tests.faults.engine import StandInEngine, flip_bit
from tests.faults.orders import Orders
from tests.faults.policy import StandInPolicy
from trimaran.config import load_config
from trimaran.run.context import RunContext
from trimaran.telemetry.run_files import setup_logging
from trimaran.types import Peer, TrainingBatch
from weights.memory import shadow
from weights.receiving.receiver import WeightReceiver
from weights.sending.sender import WeightSender
from weights.transports.arrival import Verifier

GATE_SECONDS = 0.02

Door = str
"""host:port that stands in a peer's announcement instead of its own."""


def serve_trainer(config_path: Path, run_folder: Path, index: int, door: Door) -> None:
    orders = _begin(run_folder, f"trainer-{index}")
    trainer.build_policy = lambda config, meeting, device, rank: StandInPolicy(
        config, meeting, rank
    )
    trainer_rank.train_step = lambda policy, batch, config, previous: policy.advance(batch.step)
    _announce(WeightSender, run_folder / f"trainer-{index}.relay", door)
    _wrap_hold(orders)
    _wrap_send(orders)
    _serve(trainer.serve, config_path, run_folder, index)


def serve_replica(
    config_path: Path, run_folder: Path, index: int, door: Door, stand_in: bool
) -> None:
    orders = _begin(run_folder, f"rollout-{index}")
    if stand_in:
        rollout.create_engine = lambda config, device, place: StandInEngine(orders)
    else:
        _wrap_load(orders)
    _announce(WeightReceiver, run_folder / f"rollout-{index}.relay", door)
    _wrap_stage(orders)
    _serve(rollout.serve, config_path, run_folder, index)


def serve_weight_sync(config_path: Path, run_folder: Path) -> None:
    orders = _begin(run_folder, "weight-sync")
    _patch(VersionLedger).commit = _reaching(orders, "record", VersionLedger.commit, "recorded")
    _serve(weight_sync.serve, config_path, run_folder, 0)


def serve_controller(config_path: Path, run_folder: Path) -> None:
    _begin(run_folder, "controller")
    _wrap_train(gate_of(run_folder))
    _serve(controller.serve, config_path, run_folder, 0)


def gate_of(run_folder: Path) -> Path:
    """The file that says up to which step the controller may train."""
    return run_folder / "gate"


def _begin(run_folder: Path, name: str) -> Orders:
    setup_logging(name)
    torch.set_num_threads(1)
    return Orders(run_folder, name)


def _serve(
    serve: Callable[..., Awaitable[None]], config_path: Path, run_folder: Path, index: int
) -> None:
    """As `trimaran serve` does: until SIGTERM."""

    async def until_stopped() -> None:
        task = asyncio.current_task()
        assert task
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await serve(load_config(config_path), RunContext.in_folder(run_folder), index)

    try:
        asyncio.run(until_stopped())
    except asyncio.CancelledError:
        # Threads that sit in a collective of a group that died must not hold the process.
        os._exit(0)


def _announce(kind: Any, file: Path, door: Door) -> None:
    """Peers get the door on the driver's wire; who it really is goes to a file."""
    own = kind.peer.fget

    def peer(self: Any) -> Peer:
        found = own(self)
        write(file, json.dumps(asdict(found)))
        return replace(found, relay=door)

    kind.peer = property(peer)


def _patch(kind: Any) -> Any:
    """Says that the wrapper takes what the wrapped one takes, though its signature does not."""
    return kind


def _wrap_train(gate: Path) -> None:
    """The controller goes on, but for this, until the driver permits the step."""
    train = Loop.train

    async def wrapped(self: Loop, batch: TrainingBatch) -> Any:
        while int(gate.read_text()) < batch.step:
            await asyncio.sleep(GATE_SECONDS)
        return await train(self, batch)

    _patch(Loop).train = wrapped


def _wrap_hold(orders: Orders) -> None:
    """ "snapshot": the shard is digested, and only then does its memory go bad."""
    hold = WeightSender.hold

    def wrapped(self: WeightSender, snapshot: Any) -> None:
        if snapshot is not None and orders.reach("snapshot") == "flip":
            flip_bit(snapshot.buffer)
        hold(self, snapshot)

    _patch(WeightSender).hold = wrapped


def _wrap_send(orders: Orders) -> None:
    """ "send": a collective send begins; with "flip" one bit differs while it lasts."""
    send = WeightSender.send

    def wrapped(self: WeightSender, snapshot: Any, *arguments: Any) -> int:
        harm = orders.reach("send") == "flip"
        if harm:
            flip_bit(snapshot.buffer)
        try:
            return send(self, snapshot, *arguments)
        finally:
            if harm:
                flip_bit(snapshot.buffer)

    _patch(WeightSender).send = wrapped


def _wrap_stage(orders: Orders) -> None:
    """ "stage" and "staged" stand around a stage; "landed" is in it, before a block is checked."""
    stage, check = WeightReceiver.stage, Verifier.check

    def staging(self: WeightReceiver, *arguments: Any, **named: Any) -> Any:
        orders.reach("stage")
        staged = stage(self, *arguments, **named)
        orders.reach("staged")
        return staged

    def checking(self: Verifier, number: int) -> None:
        orders.reach("landed")
        check(self, number)

    _patch(WeightReceiver).stage, _patch(Verifier).check = staging, checking


def _wrap_load(orders: Orders) -> None:
    """ "half": vLLM's core, which is forked from here, has loaded half of the tensors."""
    open_shadow = shadow.open_shadow

    def opening(*arguments: Any) -> Iterator[tuple[str, torch.Tensor]]:
        tensors = list(open_shadow(*arguments))
        for number, tensor in enumerate(tensors):
            if number == len(tensors) // 2:
                orders.reach("half")
            yield tensor

    # Before vLLM's side imports it from there.
    _patch(shadow).open_shadow = opening


def write(file: Path, text: str) -> None:
    """Whole or not at all."""
    part = file.with_suffix(f".{threading.get_native_id()}.part")
    part.write_text(text)
    part.rename(file)


def _reaching(orders: Orders, before: str, work: Any, after: str) -> Any:
    async def wrapped(*arguments: Any, **named: Any) -> Any:
        orders.reach(before)
        result = await work(*arguments, **named)
        orders.reach(after)
        return result

    return wrapped
