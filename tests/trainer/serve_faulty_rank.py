"""One trainer rank that sends itself a signal in the middle of something:
`python -m tests.trainer.serve_faulty_rank CONFIG RUN_FOLDER INDEX PLACE SIGNAL`."""

from __future__ import annotations

import os
import sys
from typing import Any

from services.trainer import rank
from services.trainer.checkpoints import checkpoint, checkpoints
from services.trainer.step import learner
from tests.trainer import serve_rank

PLACES: dict[str, tuple[Any, str]] = {
    "stepping": (learner, "look_up"),
    "copying": (rank, "HostCopy"),
    "saving": (checkpoint, "write_tensors"),
    "loading": (checkpoints, "read_shard"),
}

if __name__ == "__main__":
    config, folder, index, place, number = sys.argv[1:]
    module, name = PLACES[place]
    function = getattr(module, name)

    def signalled(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), int(number))
        return function(*arguments, **named)

    setattr(module, name, signalled)
    serve_rank.main(config, folder, index)
