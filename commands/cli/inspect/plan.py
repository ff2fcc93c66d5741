"""`trimaran plan`: what a run takes of devices and hosts, before anything starts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from commands.cli.files.import_ import refuse_theirs
from commands.cli.inspect.plan_table import describe
from commands.doctor.checks.memory import read_memory
from commands.doctor.system import System
from services.trainer.checkpoints.checkpoint_folder import STATE, newest
from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.parameters.family_rules import family_rules
from services.trainer.megatron.parameters.frozen import frozen_parameters
from trimaran.config import RunConfig, load_config
from trimaran.errors import InputError
from trimaran.host.device import resolve
from trimaran.host.machine import Machine, read_gpu_memory, read_machine
from trimaran.model.folder import ModelFacts, check_tensor_parallel, has_weights
from trimaran.model.freezing import is_frozen
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.plan import (
    GIB,
    DeviceCapacity,
    MemoryPlan,
    find_faults,
    make_plan,
    refuse_impossible,
)
from trimaran.model.tensor_names import names_of
from trimaran.model.trainer_layout import check_trainer_layout


def plan(options: argparse.Namespace) -> int:
    """Returns 2 where something cannot fit."""
    refuse_theirs(options.config)
    config = load_config(options.config, options.overrides)
    machine = read_machine(os.environ)
    made = plan_here(config, machine, is_whole=False)
    room = room_here(config, machine)
    if options.device_memory is not None:
        size = round(options.device_memory * GIB)
        room = DeviceCapacity(
            size, size, size if made.trains_on_host or made.rolls_on_host else room.host
        )
    print("\n".join(describe(made, room)))
    faults = find_faults(made, room)
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 2 if faults else 0


def check_memory(config: RunConfig, machine: Machine) -> None:
    """Raises InputError for a run whose fixed parts alone are more than this machine's devices have. A
    model that is to be fetched is looked at by its services."""
    if config.model.source is not None and not config.model.path.is_dir():
        return
    refuse_impossible(plan_here(config, machine), room_here(config, machine))


def plan_here(config: RunConfig, machine: Machine, is_whole: bool = True) -> MemoryPlan:
    """Raises InputError for a model that is not here or that we cannot train, or a layout that does not
    divide it. `is_whole`: as for `check_fit`."""
    if config.model.source is not None and not config.model.path.is_dir():
        raise InputError(
            f"model.path: {config.model.path} is not here yet; its config.json is needed"
        )
    facts = check_fit(config, config.model.path, is_whole)
    return make_plan(
        config,
        ModelSizes(facts, config.model.dtype),
        trains_on_host=resolve(config.trainer.device, machine) == "cpu",
        rolls_on_host=resolve(config.rollout.device, machine) == "cpu",
        thawed=thawed_patterns(config, facts),
    )


def check_fit(config: RunConfig, folder: Path, is_whole: bool = True) -> ModelFacts:
    """The facts of the model in `folder`. Raises InputError where it cannot be trained, or not in the layout and with
    the lengths of the configuration; reads no weights. `is_whole`: False where its config.json is enough."""
    facts = read_architecture(folder, is_whole).facts
    check_tensor_parallel(facts, config.rollout.tensor_parallel, "rollout.tensor_parallel")
    check_trainer_layout(facts, config.trainer)
    facts = _check_frozen(facts, config.trainer.freeze, knows_names=is_whole or has_weights(folder))
    check_lengths(config, facts)
    return facts


def _check_frozen(facts: ModelFacts, patterns: Sequence[str], knows_names: bool) -> ModelFacts:
    """Raises InputError where the patterns cannot be frozen. `knows_names`: False of a config.json alone,
    which does not say which of two kinds of names a folder of Qwen2.5-VL has. Patterns may then fit either:
    the facts come back with those that they fit."""
    try:
        frozen_parameters(family_rules(facts), patterns)
    except InputError:
        nested = replace(facts, nested_names=True)
        if knows_names or facts.vision is None or not _can_freeze(nested, patterns):
            raise
        return nested
    return facts


def _can_freeze(facts: ModelFacts, patterns: Sequence[str]) -> bool:
    try:
        frozen_parameters(family_rules(facts), patterns)
    except InputError:
        return False
    return True


def thawed_patterns(config: RunConfig, facts: ModelFacts) -> tuple[str, ...]:
    """Those of `trainer.freeze` of which the checkpoint of `trainer.load` holds something; all of them where
    it is not on this host. Raises InputError where it cannot be read."""
    load, freeze = config.trainer.load, config.trainer.freeze
    if load is None or not freeze:
        return ()
    folder = load if (load / STATE).is_file() else newest(load)
    if folder is None:
        return freeze
    rules, held = family_rules(facts), set[str]()
    for path in folder.glob("shard-*.safetensors"):
        try:
            # Such as main.output_layer.weight@4096 (services/trainer/checkpoints/checkpoint.py).
            own = {name.partition(".")[2].partition("@")[0] for name in names_of(path)}
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"trainer.load: {path}: cannot be read ({error})") from None
        held |= {name for one in own & rules.keys() for name in rules[one].names}
    return tuple(one for one in freeze if any(is_frozen(name, (one,)) for name in held))


def check_lengths(config: RunConfig, facts: ModelFacts) -> None:
    if config.max_model_tokens > facts.max_positions:
        raise InputError(
            f"rollout.max_prompt_tokens + {config.max_answer_key}: {config.max_model_tokens} is more"
            f" than the {facts.max_positions} positions of the model; lower one of them"
        )


def room_here(config: RunConfig, machine: Machine) -> DeviceCapacity:
    """What this machine reports without opening a device: memory of GPUs, and of the host where all of
    the run is on it. NPUs do not report theirs."""
    host = read_memory(System(os.environ)).total if config.network.subnet is None else None
    sizes = {"cuda": read_gpu_memory(machine)}
    pools = (config.trainer, config.rollout)
    trainer, replica = (sizes.get(resolve(pool.device, machine)) for pool in pools)
    return DeviceCapacity(trainer, replica, host or None)
