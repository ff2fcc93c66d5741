"""The pages of `trimaran train --view`: `trimaran view` as a child, so that whoever looks holds nothing up."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from trimaran.host.lifetime import PARENT_VARIABLE

END_SECONDS = 5.0
NICENESS = 10
"""The run's processes come first."""


@asynccontextmanager
async def pages(folder: Path, say: Callable[[str], None]) -> AsyncGenerator[None]:
    """Served until the block ends. Says where once they are, or what is wrong; the run goes on.

    Example:
        async with pages(Path("runs/addition-20261120-120000"), print):
            ...
    """
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "commands.cli", "view", str(folder.parent)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
        start_new_session=True,  # Ctrl-C is for the run, whose end can still be seen
    )
    os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
    assert child.stdout
    telling = asyncio.create_task(_tell(child.stdout, say))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            child.terminate()
        try:
            async with asyncio.timeout(END_SECONDS):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()
        await telling
        say(f"its pages end with it; trimaran view {folder} shows them again")


async def _tell(output: asyncio.StreamReader, say: Callable[[str], None]) -> None:
    async for line in output:
        say(line.decode(errors="replace").rstrip())
