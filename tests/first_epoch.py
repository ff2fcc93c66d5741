"""What the services of a run expect of its controller before it calls them."""

from pathlib import Path

from trimaran.run.context import RunContext
from trimaran.store import open_store


async def draw_epoch(run_folder: Path, run_id: str = "") -> int:
    """1 for the first; without an id of the run that is named as the folder."""
    run_folder.mkdir(parents=True, exist_ok=True)
    run = RunContext.in_folder(run_folder)
    store = await open_store(run.store_url)
    try:
        return await store.next_epoch(run_id or run.run_id)
    finally:
        await store.close()
