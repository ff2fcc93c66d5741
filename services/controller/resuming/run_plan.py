"""How long a run is to be, and what else a resume may change of it: the ledger says from which step on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.ledger.ledger import RunLedger
from trimaran.ledger.records import Planned
from trimaran.run.resumable import planned_settings

STEPS = "run.steps"


def plan(ledger: RunLedger, config: RunConfig) -> str:
    """Records what is new of `config`, whose steps are counted; what a resume has changed, in words.

    A batch that was chosen before trains as it was planned then. Raises InputError for less steps than the run has.
    """
    state = ledger.state
    first = state.step + 1 + state.has_pending_batch
    if config.run.num_steps < first - 1:
        raise InputError(
            f"{STEPS}: {config.run.num_steps} (run.epochs, where that is given), and the run has {first - 1};"
            " give as many or more"
        )
    before, now = dict(state.settings), planned_settings(config)
    changed = {key: now[key] for key in now if key not in before or before[key] != now[key]}
    if not changed:
        return ""
    ledger.record(Planned(first, changed))
    return "; ".join(_words(first, before, changed, config)) if before else ""


def _words(
    first: int, before: Mapping[str, Any], changed: Mapping[str, Any], config: RunConfig
) -> Iterator[str]:
    pairs = (f"{key} {value} (was {before.get(key)})" for key, value in changed.items())
    yield f"from step {first} on: {', '.join(pairs)}"
    schedule = config.trainer.schedule
    if STEPS in changed and schedule != "constant":
        yield (
            f"trainer.schedule {schedule}: from there on the learning rate is that of step {first} of"
            f" {config.run.num_steps}, no longer of {before[STEPS]}"
        )
