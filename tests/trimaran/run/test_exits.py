from __future__ import annotations

from trimaran import errors
from trimaran.run.exits import exit_code
from trimaran.store import LostWritesError, StoreFullError


def test_only_what_may_pass_is_tried_again() -> None:
    assert exit_code(errors.InputError("run.steps: -1")) == 2
    assert exit_code(errors.LeftBehindError("rank 0 was replaced")) == 76
    passing = (
        *(errors.UnavailableError, errors.DeadlineError, errors.TransferError),
        *(errors.InternalError, StoreFullError),
    )
    assert {exit_code(kind("x")) for kind in passing} == {75}
    decided = (LostWritesError, errors.StaleEpochError, errors.TrimaranError, KeyError)
    assert {exit_code(kind("x")) for kind in decided} == {1}
