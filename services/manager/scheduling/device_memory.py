"""Whether a run can be on the devices of its pools, where the operator says how much memory these have."""

from __future__ import annotations

from collections.abc import Sequence

from services.manager.scheduling.pools import Need, Pool
from trimaran.config import RunConfig
from trimaran.model.folder import read_model_folder
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.plan import GIB, DeviceCapacity, make_plan, refuse_impossible

LABEL = "memory"
"""The label of a pool that gives the GiB of one of its devices."""


def check_memory(config: RunConfig, trainer: Need, replica: Need, pools: Sequence[Pool]) -> None:
    """Raises InputError for a run whose fixed parts alone are more than the largest of these devices has.

    Nothing is said of a model that is not on the manager's host, nor of pools without the label.
    """
    room = DeviceCapacity(*(_largest(need, pools) for need in (trainer, replica)))
    if room == DeviceCapacity() or not (config.model.path / "config.json").is_file():
        return
    model = ModelSizes(read_model_folder(config.model.path), config.model.dtype)
    plan = make_plan(
        config, model, trains_on_host=trainer.kind == "cpu", rolls_on_host=replica.kind == "cpu"
    )
    refuse_impossible(plan, room)


def _largest(need: Need, pools: Sequence[Pool]) -> int | None:
    """Bytes; None where one of the pools does not say it."""
    texts = [pool.labels.get(LABEL, "") for pool in pools if need.matches(pool)]
    if need.kind == "cpu" or not all(text.isdecimal() for text in texts):
        return None
    return max((int(text) * GIB for text in texts), default=None)
