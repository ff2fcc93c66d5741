"""A plan as lines of text: aligned tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trimaran.model.memory.model import num_layers
from trimaran.model.memory.plan import (
    GIB,
    DeviceCapacity,
    MemoryPlan,
    describe_model,
    key_value_room,
)
from trimaran.model.memory.rank import RankMemory
from trimaran.model.memory.stages import stage_costs, waits
from trimaran.model.memory.trained import patterns

KIB = 1 << 10
Row = tuple[str, ...]


def describe(plan: MemoryPlan, room: DeviceCapacity) -> Iterator[str]:
    """All of it, without faults."""
    yield f"{plan.config.model.path.name}: {describe_model(plan.model)}"
    yield ""
    yield from align(_trainer(plan, room))
    yield ""
    if plan.config.trainer.pipeline_parallel > 1:
        yield from align(_stages(plan))
        yield ""
    yield from align(_rollout(plan, room))
    yield ""
    yield from align(_host(plan, room))


def align(rows: Sequence[Row]) -> Iterator[str]:
    """The first column to the left, the others to the right, a rule below the first row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, (first, *others) in enumerate(rows):
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()
        if number == 0:
            yield "-" * (sum(widths) + 2 * (len(widths) - 1))


def groups(ranks: Sequence[RankMemory]) -> list[tuple[str, RankMemory]]:
    """Ranks that take the same, with their numbers. Example: [("0, 2-3", ...), ("1", ...)]"""
    found: dict[RankMemory, list[int]] = {}
    for number, rank in enumerate(ranks):
        found.setdefault(rank, []).append(number)
    return [(_numbers(numbers), rank) for rank, numbers in found.items()]


def _numbers(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _trainer(plan: MemoryPlan, room: DeviceCapacity) -> list[Row]:
    named, tokens = groups(plan.ranks), plan.tokens
    ranks = [rank for _, rank in named]
    largest = plan.largest_micro_batch(room)

    def row(what: str, sizes: Sequence[float]) -> Row:
        return (what, *map(number, sizes))

    is_bf16 = plan.config.trainer.optimizer == "adamw_bf16"
    main = "compensation, bfloat16" if is_bf16 else "main weights, float32"
    rows = [
        ("trainer rank, GiB", *(name for name, _ in named)),
        row("parameters", [rank.weights for rank in ranks]),
        row("parameters that train", [rank.trained for rank in ranks]),
        row("gradients, float32", [rank.gradients for rank in ranks]),
        row(f"optimizer: {main}", [rank.main_weights for rank in ranks]),
        row("optimizer: AdamW's moments", [rank.moments for rank in ranks]),
        row("reference model", [rank.reference for rank in ranks]),
        row(f"activations of {tokens} tokens", [rank.activations(tokens) for rank in ranks]),
        row("logits of their trained tokens", [rank.logits(tokens) for rank in ranks]),
        *(
            []
            if plan.trains_on_host
            else [row("communicators, about", [rank.communicators for rank in ranks])]
        ),
        row("peak", [rank.peak(tokens) for rank in ranks]),
        ("activations of a token, KiB", *map(_kib, ranks)),
        row("snapshot on the host", [rank.snapshot for rank in ranks]),
        row("copy of a checkpoint on the host", [rank.copied for rank in ranks]),
    ]
    if plan.config.trainer.offload:
        kept = [rank.host_optimizer for rank in ranks]
        rows.append(row("optimizer on the host", kept))
        rows.append(row("on the device all the time", [rank.resident for rank in ranks]))
    if plan.config.trainer.router.replay:
        rows.append(row("choices of experts on the host", [rank.replayed for rank in ranks]))
    if any(rank.features for rank in ranks):
        kept = [rank.features for rank in ranks]
        rows.append(row("features of images on the host, at most", kept))
    if plan.config.is_colocated and not plan.trains_on_host:
        rows.append(row("on the host in the rollout's turn", [rank.away for rank in ranks]))
    if (most := plan.config.max_sequences) > 1:
        rows.append(("sequences of an episode, at most", *[str(most)] * len(ranks)))
    known = "?" if largest is None else f"{largest:,}"
    rows.append(
        (f"largest micro-batch, of {plan.work.batch_tokens:,} tokens", *[known] * len(ranks))
    )
    return rows


def _stages(plan: MemoryPlan) -> list[Row]:
    """With a vision tower, of prompts that are images alone: the most that there can be."""
    section, work = plan.config.trainer, plan.work
    layout, virtual = section.layout, section.virtual_stages
    images = work.prompt / work.group_tokens
    costs = stage_costs(plan.model, layout, images, work.trained, patterns(section))
    share = waits(costs, -(-work.batch_tokens // plan.tokens), virtual)
    places = map(layout.place, range(0, layout.num_ranks, layout.num_ranks // layout.pipeline))
    return [
        ("stage of the pipeline", *map(str, range(layout.pipeline))),
        ("layers", *(str(num_layers(plan.model, place)) for place in places)),
        ("waits for the others, % of an update", *(f"{100 * one:.0f}" for one in share)),
    ]


def _kib(rank: RankMemory) -> str:
    return f"{rank.layers_token / KIB:,.0f}"


def _rollout(plan: MemoryPlan, room: DeviceCapacity) -> list[Row]:
    replica, given = plan.replica, key_value_room(plan, room)
    section = plan.config.rollout
    hosts = [("hosts x devices on each", f"{section.hosts} x {section.devices_on_host}")]
    return [
        ("replica, GiB on each of its devices", ""),
        *(hosts if section.hosts > 1 else []),
        ("parameters", number(replica.weights)),
        ("keys and values: room, at most", "?" if given is None else number(given)),
        ("keys and values of a token, KiB", f"{replica.key_value_token / KIB:,.0f}"),
        (
            f"sequences of {plan.config.max_model_tokens} tokens at a time",
            "?" if given is None else f"{replica.sequences(given):,}",
        ),
        (
            "shadow on the host" if section.hosts == 1 else "shadow on each host",
            number(replica.shadow),
        ),
        ("buckets of a transfer on its way", number(replica.staging)),
    ]


def _host(plan: MemoryPlan, room: DeviceCapacity) -> list[Row]:
    """What the run's processes take together."""
    return [
        ("all on one host, GiB", ""),
        ("snapshots", number(sum(rank.snapshot for rank in plan.ranks))),
        ("copies of a checkpoint", _sum(rank.copied for rank in plan.ranks)),
        (f"shadows: {plan.num_shadows}", number(plan.num_shadows * plan.replica.shadow)),
        *_waiting(plan),
        *(
            [
                ("choices of experts: ranks", number(sum(rank.replayed for rank in plan.ranks))),
                ("choices of experts: controller", number(plan.controller)),
            ]
            if plan.config.trainer.router.replay
            else []
        ),
        ("trainer processes as loaded", number(plan.runtime * len(plan.ranks))),
        ("peak, without replicas as loaded", number(plan.peak_on_host())),
        ("there is", "?" if room.host is None else number(room.host)),
    ]


def _waiting(plan: MemoryPlan) -> list[Row]:
    """What of the trainer is on the host while it is not on devices."""
    if plan.config.is_colocated and not plan.trains_on_host:
        return [
            ("the trainer's state in the rollout's turn", _sum(rank.away for rank in plan.ranks))
        ]
    if "optimizer" in plan.config.trainer.offload:
        return [("optimizers", _sum(rank.host_optimizer for rank in plan.ranks))]
    return []


def _sum(sizes: Iterable[int]) -> str:
    return number(sum(sizes))


def number(size: float) -> str:
    """In GiB."""
    return f"{size / GIB:,.2f}"
