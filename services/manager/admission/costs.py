"""What a specification may cost, at most, and what one owner may have at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from services.manager.admission.roots import naming
from services.manager.settings import LimitsSection
from trimaran.config import RunConfig
from trimaran.errors import LimitError
from trimaran.model.memory.work import answer_bytes

MAIN_STATE = 6
"""A checkpoint's bytes for each byte of a bfloat16 model: weights and two moments in float32."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Costs:
    """Upper bounds of one run. What is made again is not counted: groups that were under way at a failure
    or a pause, and groups in the place of those that could not be generated or scored."""

    devices: int
    replicas: int
    steps: int
    tokens: int
    disk_gib: float
    host_memory_gib: float


def costs_of(config: RunConfig) -> Costs:
    """Reads the sizes of the model's files, and nothing else."""
    rollout = config.rollout
    replicas = rollout.max_replicas  # it may grow to these while devices are idle
    return Costs(
        devices=config.num_devices,
        replicas=replicas,
        steps=config.run.num_steps,
        tokens=config.max_sequences
        * (
            _trained(config) * config.max_trained_tokens
            + _validated(config) * config.max_held_out_tokens
        ),
        disk_gib=_checkpoints(config) / GIB + (config.run.payload_quota_gib or 0),
        host_memory_gib=host_memory_gib(config, replicas),
    )


def host_memory_gib(config: RunConfig, replicas: int) -> float:
    """The host memory that a run takes with so many replicas."""
    return sum(_host_memory(config, replicas).values())


def _host_memory(config: RunConfig, replicas: int) -> dict[str, float]:
    """GiB, by the keys of which they are."""
    reward, rollout = config.reward, config.rollout
    environment = config.environment
    environments_mib = environment.num_processes * environment.memory_mib if environment else 0
    return {
        "rollout.max_replicas x rollout.kv_cache_gib": replicas * rollout.kv_cache_gib,
        "reward.workers x reward.memory_mib": reward.workers * reward.memory_mib / 1024,
        "environment.replicas x environment.max_episodes x environment.memory_mib": environments_mib
        / 1024,
        "rollout.group_size x run.groups_per_step x (run.max_lag + 1) answers of"
        f" {config.max_trained_key}, and those of a validation": answer_bytes(config, replicas)
        / GIB,
    }


def check_costs(config: RunConfig, limits: LimitsSection) -> Costs:
    """Raises LimitError with a line for each field that is too much."""
    costs = costs_of(config)
    memory = _host_memory(config, costs.replicas)
    fields = {
        "devices": "rollout.replicas x rollout.tensor_parallel + trainer.tensor_parallel x"
        " pipeline_parallel x data_parallel x context_parallel (run.pools: colocated counts them once)",
        "replicas": "rollout.max_replicas",
        "steps": "run.steps",
        "tokens": f"run.steps x run.groups_per_step x rollout.group_size x {config.max_trained_key}"
        f"{' x environment.max_turns' if config.max_sequences > 1 else ''}, and"
        " what algorithm.dynamic_sampling.max_replaced, greedy answers (remax) and validation add",
        "disk_gib": "(run.keep_checkpoints + run.keep_best) x the model's state + run.payload_quota_gib (GiB)",
        # What takes most stands first.
        "host_memory_gib": " + ".join(sorted(memory, key=memory.__getitem__, reverse=True))
        + " (GiB)",
    }
    faults = [
        f"{text}: {wanted:,.6g} is more than this owner's {name}, {most:,.6g}; lower it"
        for name, text in fields.items()
        if 0 < (most := getattr(limits, name)) < (wanted := getattr(costs, name))
    ]
    if config.run.epochs and (limits.steps or limits.tokens):
        faults.append(
            "run.epochs: how many steps they are is known once the run reads its data, and this owner's steps or"
            " tokens are limited; give run.steps"
        )
    if limits.disk_gib and not config.model.path.is_dir():
        faults.append(
            f"model.path: {config.model.path} is not on the manager's host, so it is not known what its"
            " checkpoints take of this owner's disk_gib; bring it there"
        )
    if limits.disk_gib and config.run.payload_quota_gib is None:
        faults.append(
            f"run.payload_quota_gib: missing; this owner's disk_gib is {limits.disk_gib:g}, so give the"
            " GiB that the run's payloads may take"
        )
    if faults:
        raise LimitError("\n".join(faults))
    return costs


def check_owner(owner: str, num_runs: int, limits: LimitsSection) -> None:
    """One more run of `owner`, who has `num_runs` that have not ended. Raises LimitError."""
    if 0 < limits.runs <= num_runs:
        raise LimitError(
            f"owner {owner} has {num_runs} runs that have not ended; at most {limits.runs}: wait"
            " for one to end, or cancel one"
        )


def check_kept(owner: str, num_runs: int, limits: LimitsSection) -> None:
    """The same with all runs of `owner` that are not deleted."""
    if 0 < limits.kept <= num_runs:
        raise LimitError(
            f"owner {owner} keeps {num_runs} runs, ended ones as well; at most {limits.kept}: delete"
            " one"
        )


def _trained(config: RunConfig) -> int:
    """Completions, at most: also of groups that others replace, each with its greedy answer if any."""
    if config.validation.only:
        return 0
    algorithm, groups = config.algorithm, config.run.groups_per_step
    sampling = algorithm.dynamic_sampling
    replaced = math.ceil(sampling.max_replaced * groups) if sampling else 0
    answers = config.rollout.group_size + algorithm.needs_greedy
    return config.run.num_steps * (groups + replaced) * answers


def _validated(config: RunConfig) -> int:
    """Completions, at most: each prompt has some at the training temperature and a greedy one."""
    if not config.data.validation:
        return 0
    section = config.validation
    if section.only:
        return section.max_prompts * (section.final_samples + 1)
    on_the_way = config.run.num_steps // section.every * (section.samples + 1)
    return section.max_prompts * (on_the_way + 2 * (section.final_samples + 1))


def _checkpoints(config: RunConfig) -> int:
    """Those that are kept, one that is written, and the exported model."""
    with naming("model.path", config.model.path):
        model = sum(_sizes(config.model.path.glob("*.safetensors")))
    each = MAIN_STATE + int(config.run.checkpoint_models)
    return model * (each * config.run.num_checkpoints + 1)


def _sizes(files: Iterable[Path]) -> Iterable[int]:
    return (file.stat().st_size for file in files)
