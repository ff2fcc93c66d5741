from __future__ import annotations

import pytest

from trimaran.errors import (
    DeadlineError,
    InputError,
    InternalError,
    LeftBehindError,
    StaleEpochError,
    TransferError,
    TrimaranError,
    UnavailableError,
)
from trimaran.run.exits import exit_code
from trimaran.store import LostWritesError, StoreFullError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("run.steps: -1"), 2),
        (UnavailableError("reward: connection refused"), 75),
        (StoreFullError("no room"), 75),
        (LeftBehindError("rank 0 was replaced"), 76),
        (DeadlineError("no answer"), 75),
        (TransferError("broken"), 75),
        (InternalError("CUDA error"), 75),
        (LostWritesError("the store has gone back"), 1),
        (StaleEpochError("replaced"), 1),
        (TrimaranError("nothing is left to train on"), 1),
        (KeyError("a bug"), 1),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, code: int) -> None:
    assert exit_code(error) == code
