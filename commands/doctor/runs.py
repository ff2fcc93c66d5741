"""What the start of a run would refuse: the checks of `commands/cli/train/preflight.py`, as findings; and GPUs that others
have filled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from commands.doctor.checks.limits import describe_bytes
from commands.doctor.finding import Finding, KnownFault, Severity
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.host.machine import GpuMemory
from trimaran.model.memory.plan import MemoryPlan
from trimaran.run.placement import Placement

REFUSED = KnownFault(
    "run/refused",
    Severity.ERROR,
    "{what}",
    "`trimaran train` stops here, before it starts anything",
    "correct what the line names",
)
IN_USE = KnownFault(
    "run/device-in-use",
    Severity.WARNING,
    "GPU {name} has {free} free of {total}, and {who} takes {needs} of it",
    "others hold the rest. vLLM does not start where less than its share is free, and a trainer's rank"
    " ends when the memory is full",
    "nvidia-smi   # end what is left over from another run, or name others: trainer.devices, rollout.devices",
)


def check_run_by(
    check: Callable[[RunConfig], None], config: RunConfig, known: Collection[str] = ()
) -> Iterator[Finding]:
    """`check`: raises InputError with a line for each fault. `known`: lines that are findings already."""
    try:
        check(config)
    except InputError as error:
        for line in str(error).splitlines():
            if line not in known:
                yield REFUSED.found(what=line)


def check_gpus(
    placement: Placement, plan: MemoryPlan, gpus: Sequence[GpuMemory]
) -> Iterator[Finding]:
    """What each process takes of its GPUs for certain, against what is free there. `gpus`: by the numbers of
    nvidia-smi. Those that the configuration names by a UUID are not looked at."""
    for pool, placed in placement.pools.items():
        for index, share in enumerate(placed.shares if placed.kind == "cuda" else ()):
            for name in share:
                if not name.isdecimal() or int(name) >= len(gpus):
                    continue
                gpu = gpus[int(name)]
                needs = plan.ranks[index].sure if pool == "trainer" else _of_replica(plan, gpu)
                if needs > gpu.free:
                    places = {
                        "name": name,
                        "who": f"{pool} {index}",
                        "needs": describe_bytes(needs),
                    }
                    sizes = {"free": describe_bytes(gpu.free), "total": describe_bytes(gpu.total)}
                    yield IN_USE.found(**places, **sizes)


def _of_replica(plan: MemoryPlan, gpu: GpuMemory) -> int:
    """vLLM looks whether its whole share is free before it loads anything."""
    rollout = plan.config.rollout
    return (
        int(rollout.memory_fraction * gpu.total)
        if rollout.engine == "vllm"
        else plan.replica.weights
    )
