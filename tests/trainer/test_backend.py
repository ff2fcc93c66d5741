"""Where a rank computes and sends from. Each process sees its own devices only (run/placement.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.trainer import server
from services.trainer.backend import build_policy
from trimaran.config import RunConfig
from trimaran.run.context import RunContext


class Seen(Exception):
    """What was asked of a fake; nothing after it matters."""


class FakeDevice:
    def activate(self, index: int = 0, *, megatron: bool = False) -> None:
        raise Seen(index, megatron)


def test_every_rank_computes_on_the_first_device_that_it_sees(
    make_config: Callable[..., RunConfig],
) -> None:
    device: Any = FakeDevice()
    with pytest.raises(Seen) as seen:
        build_policy(make_config(trainer={"data_parallel": 4}), None, device, rank=3)
    assert seen.value.args == (0, True)


def test_every_rank_sends_from_the_first_device_that_it_sees(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_sender(device: object, index: int, *others: object) -> None:
        raise Seen(index)

    monkeypatch.setattr(server, "WeightSender", make_sender)
    addresses = ["127.0.0.1:7001", "127.0.0.1:7002"]
    config = make_config(trainer={"data_parallel": 2}, endpoints={"trainer": addresses})
    with pytest.raises(Seen) as seen:
        asyncio.run(server.serve(config, RunContext.in_folder(tmp_path), 1))
    assert seen.value.args == (0,)
