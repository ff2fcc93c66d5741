"""The systems whose files are understood."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commands.importing.conversion import SourceSystem
from commands.importing.easyr1 import EASYR1
from commands.importing.mindspeed_rl import MINDSPEED_RL
from commands.importing.verl import VERL

SYSTEMS: Mapping[str, SourceSystem] = {
    system.name: system for system in (VERL, EASYR1, MINDSPEED_RL)
}


def recognize(keys: Iterable[str]) -> SourceSystem | None:
    """The system whose file has these keys, or sections; None for a file of another kind.

    Example: recognize(["actor_rollout_ref.rollout.n"]) is SYSTEMS["verl"]
    """
    found = list(map(str, keys))  # YAML has keys of other types
    return next((system for system in SYSTEMS.values() if system.is_mine(found)), None)
