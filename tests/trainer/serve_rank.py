"""One trainer rank as a process: `python -m tests.trainer.serve_rank CONFIG RUN_FOLDER INDEX`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from services.trainer.server import serve
from tests.trainer.collectives import refuse_float64
from trimaran.config import load_config
from trimaran.run.context import RunContext


def main(config: str, folder: str, index: str) -> None:
    refuse_float64()
    asyncio.run(serve(load_config(config), RunContext.in_folder(Path(folder)), int(index)))


if __name__ == "__main__":
    main(*sys.argv[1:])
