"""The end of the ledger, noted outside the store: `ledger-head.json` in the run folder.

A chain shows what is missing in its middle. That its last records are gone shows only where another place
knows how far it went. The store cannot be that one, since it loses both together: a fail-over
to a replica that lags behind, a truncated file, an older back-up. So the run folder holds the number
of records and the last hash, written after each append; each checkpoint of the trainer holds them, too.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from trimaran.errors import InputError
from trimaran.host.call_thread import Disk
from trimaran.host.places import Place
from trimaran.ledger.disk import CLOSE_SECONDS, DISK_SECONDS, naming_full_disk, write_durably
from trimaran.run.place import saved_states
from trimaran.types import LedgerEnd

ANCHOR_NAME = "ledger-head.json"


class AnchorFile:
    """The run folder's anchor.

    Example:
        file = AnchorFile(run_folder)
        await file.write(LedgerEnd(812, "9c41…"))
        file.read() == LedgerEnd(812, "9c41…")
    """

    def __init__(self, run_folder: Path) -> None:
        self.path = run_folder / ANCHOR_NAME
        self._disk = Disk(self.path, DISK_SECONDS)

    def read(self) -> LedgerEnd | None:
        """None before the first. Raises InputError when it is damaged."""
        try:
            return LedgerEnd(**json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{self.path}: not the end of a ledger ({error}); remove it to resume without the"
                " check that the ledger's last records are there"
            ) from None

    async def write(self, anchor: LedgerEnd) -> None:
        """On the disk when it returns. A crash may leave the one before, which is true as well."""
        data = (json.dumps(asdict(anchor)) + "\n").encode()
        with naming_full_disk(self.path):
            await self._disk.do(lambda: write_durably(self.path, data))

    def close(self) -> None:
        self._disk.close(CLOSE_SECONDS)


def read_anchors(run_folder: Path, place: Place | None = None) -> dict[str, LedgerEnd]:
    """What was noted outside the store, in the run folder and in its checkpoints, by where it stands.
    `place`: the run's own, where its checkpoints lie elsewhere."""
    file = AnchorFile(run_folder)
    try:
        noted = file.read()
    finally:
        file.close()
    found = {str(file.path): noted} if noted else {}
    for where, state, _ in saved_states(run_folder, place):
        if end := state.get("ledger"):
            found[f"{where}/state.json"] = LedgerEnd(**end)
    return found
