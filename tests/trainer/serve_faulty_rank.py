"""One trainer rank that sends itself a signal in the middle of something:
`python -m tests.trainer.serve_faulty_rank CONFIG RUN_FOLDER INDEX PLACE SIGNAL`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.trainer import rank, server
from services.trainer.checkpoints import checkpoint, checkpoints
from services.trainer.step import learner
from tests.trainer.collectives import refuse_float64
from trimaran.config import load_config
from trimaran.run.context import RunContext

PLACES: dict[str, tuple[Any, str]] = {
    "stepping": (learner, "look_up"),
    "copying": (rank, "HostCopy"),
    "saving": (checkpoint, "write_tensors"),
    "loading": (checkpoints, "read_shard"),
}


def signalled(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), number)
        return function(*arguments, **named)

    return wrapped


if __name__ == "__main__":
    refuse_float64()
    assert rank.TrainerRank
    config, folder, index, place, number = sys.argv[1:]
    module, name = PLACES[place]
    setattr(module, name, signalled(getattr(module, name), int(number)))
    context = RunContext.in_folder(Path(folder))
    asyncio.run(server.serve(load_config(config), context, int(index)))
