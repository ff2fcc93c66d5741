"""The recipe of a transport: its carrier, in a real receiver."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.extending.recipes import RECIPES
from trimaran import types
from trimaran.errors import TransferError
from trimaran.types import Ranges, Transport

torch = pytest.importorskip("torch", reason="torch is not installed; weight sync needs it")


@dataclass(frozen=True, slots=True)
class DiskSource:
    """As step 1 of the recipe adds it; a member of the enum cannot be added from outside."""

    transport: ClassVar = Transport.RELAY
    blocks: Ranges
    path: str
    delta: ClassVar = None
    shared: ClassVar = ""


def test_the_carrier_fills_a_shadow_and_names_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.weight_sync.ends import CONFIG, CPU, blocks_of, holds, make_snapshot, stage
    from weights.receiving.receiver import WeightReceiver
    from weights.transports.carrier import WrongBlockError

    monkeypatch.setattr(types, "DiskSource", DiskSource, raising=False)
    names: dict[str, Any] = {}
    exec(RECIPES["A transport"].parts["disk_carrier.py"], names)
    make_carrier: Callable[[], Any] = names["DiskCarrier"]

    snapshot = make_snapshot()
    path = tmp_path / "blocks"
    whole = snapshot.buffer.numpy().tobytes()[: snapshot.layout.pieces[-1].end]
    source: Any = DiskSource(blocks_of(snapshot), str(path))
    with closing(
        WeightReceiver(CPU, 0, CONFIG, carriers={Transport.RELAY: make_carrier()})
    ) as receiver:
        path.write_bytes(whole)
        stage(receiver, snapshot, source)
        assert holds(receiver, snapshot)
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(WrongBlockError, match="block 8"):
            stage(receiver, snapshot, source)
        path.write_bytes(whole[:-1])
        with pytest.raises(TransferError, match=f"{path}: ends inside block 8"):
            stage(receiver, snapshot, source)
        path.write_bytes(whole)
        with pytest.raises(TransferError, match=f"{path}: not read by the deadline"):
            stage(receiver, snapshot, source, timeout=-1.0)
