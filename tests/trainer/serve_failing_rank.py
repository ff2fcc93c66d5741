"""One trainer rank whose disk waits for a file, and which may fail in a step while it does:
`python -m tests.trainer.serve_failing_rank CONFIG RUN_FOLDER INDEX GO FAILING_RANKS`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from services.trainer import rank
from services.trainer.checkpoints import checkpoint
from services.trainer.step import learner
from tests.trainer import serve_rank

if __name__ == "__main__":
    config, folder, index, go, failing = sys.argv[1:]
    write, train = checkpoint.write_tensors, learner.train_step

    def write_late(*arguments: Any, **named: Any) -> Any:
        while not Path(go).exists():
            time.sleep(0.01)
        return write(*arguments, **named)

    def train_or_fail(policy: Any, batch: Any, *rest: Any) -> Any:
        if batch.step == 2 and index in failing.split(","):
            raise RuntimeError("an accident of its own")
        return train(policy, batch, *rest)

    checkpoint.write_tensors, rank.train_step = write_late, train_or_fail
    serve_rank.main(config, folder, index)
