"""A service that answers its health and does nothing: `serving.py ADDRESS MARK`."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from trimaran.host.lifetime import PARENT_VARIABLE, die_with_parent
from trimaran.wire import rpc


async def main(address: str, mark: Path) -> None:
    server = rpc.Server(address, [])
    await server.start()
    mark.with_suffix(".partial").write_text(str(os.getpid()))
    mark.with_suffix(".partial").rename(mark)
    await asyncio.Event().wait()


die_with_parent(int(os.environ[PARENT_VARIABLE]), signal.SIGTERM)
asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
