"""How much room the disk of a run has."""

from __future__ import annotations

import asyncio
from pathlib import Path

from trimaran.ledger.disk import FreeDisk

SECONDS = 30.0


async def seen(disk: FreeDisk, known: bool) -> None:
    async with asyncio.timeout(SECONDS):
        while (disk.free_bytes is None) is known:
            await asyncio.sleep(0.01)


async def test_the_room_is_known_and_a_folder_that_is_gone_has_none(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()

    async with FreeDisk(folder, every=0.01).watched() as disk:
        await seen(disk, known=True)
        folder.rmdir()
        await seen(disk, known=False)
        folder.mkdir()
        await seen(disk, known=True)
