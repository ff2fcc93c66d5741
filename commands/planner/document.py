"""The tables of docs/parallelism.md, each between two marks in it:

python -m trimaran.model.memory docs/parallelism.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from commands.planner.models import EXAMPLES, QWEN25_VL_7B, Example
from commands.planner.table import KIB, number
from trimaran.config.parallel import Layout
from trimaran.model.memory.rank import Choices, RankMemory, rank_memory
from trimaran.model.memory.replica import replica_memory
from trimaran.model.memory.stages import stage_costs, update_time, waits
from trimaran.model.memory.work import Work

DEVICES = (80, 64)
"""GiB of one."""
GIB = 1 << 30
WORK = Work(prompt=1024, completion=2048, group=8, groups=64)
FRACTION = 0.85
"""`rollout.memory_fraction` unless a run says otherwise."""
BUCKET_MIB = 64
IMAGES = (0.05, 0.2, 0.5)
"""Shares of a micro-batch's tokens that stand for images; the others are trained."""
MICRO_BATCHES = 8
SPLITS = [Layout(4, 2, layers=layers) for layers in ((), (11, 17), (4, 24), (0, 28))]
"""Of Qwen2.5-VL-7B into two stages."""
SHARED = Choices(sequence_parallel=True, distributed_optimizer=True)


def refresh(text: str) -> str:
    """A document with the tables of today. Raises ValueError where it lacks their marks."""
    for name, lines in TABLES.items():
        begin, end = marks(name)
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"the document lacks {begin} and {end}")
        text = "\n".join([before + begin, "", *lines(), "", end + after])
    return text


def marks(name: str) -> tuple[str, str]:
    """Example: marks("models")[0] == "<!-- trimaran.model.memory, models: begin -->" """
    return (
        f"<!-- trimaran.model.memory, {name}: begin -->",
        f"<!-- trimaran.model.memory, {name}: end -->",
    )


def _models() -> Iterator[str]:
    sizes = " | ".join(f"on {size} GiB" for size in DEVICES)
    rule = "---:|" * len(DEVICES)
    yield (
        "| model | tensor, context, pipeline, data, expert | ranks | stage | parameters | gradients | optimizer"
        f" | snapshot | KiB a token | {sizes} |"
    )
    yield f"|---|---|---:|---:|---:|---:|---:|---:|---:|{rule}"
    for example in EXAMPLES:
        for layout in example.layouts:
            yield from _rank_rows(example, layout)
    yield ""
    yield f"| model | tensor | parameters | shadow | KiB a token | {sizes} |"
    yield f"|---|---:|---:|---:|---:|{rule}"
    yield from map(_replica_row, EXAMPLES)


def _rank_rows(example: Example, layout: Layout) -> Iterator[str]:
    """Of the first stage and the last one, where there are several."""
    counts = layout.tensor, layout.context, layout.pipeline, layout.data, layout.expert
    sizes = ", ".join(map(str, counts))
    if layout.layers:
        sizes += f"; layers {' + '.join(map(str, layout.layers))}"
    for stage in sorted({0, layout.pipeline - 1}):
        first = stage * (layout.num_ranks // layout.pipeline)
        rank = rank_memory(example.model, layout.place(first), WORK, SHARED)
        cells = [
            *(example.name, sizes, str(layout.num_ranks), str(stage)),
            *map(number, (rank.weights, rank.gradients, rank.main_weights + rank.moments)),
            *(number(rank.snapshot), f"{rank.layers_token / KIB:,.0f}"),
            *(_largest(rank, size) for size in DEVICES),
        ]
        yield f"| {' | '.join(cells)} |"


def _splits() -> Iterator[str]:
    """What a rank of each stage takes at least, in every split."""
    yield f"| layers | stage 0, GiB | stage 1, GiB | largest micro-batch on {DEVICES[0]} GiB |"
    yield "|---|---:|---:|---:|"
    for layout in SPLITS:
        places = layout.place(0), layout.place(layout.tensor)
        ranks = [rank_memory(QWEN25_VL_7B, place, WORK, SHARED) for place in places]
        fits = min(rank.largest(DEVICES[0] * GIB) for rank in ranks)
        cells = _split(layout), *(number(rank.sure) for rank in ranks), f"{fits:,}"
        yield f"| {' | '.join(cells)} |"


def _waiting() -> Iterator[str]:
    """The time is that of an update, in those of the first split."""
    yield "| image tokens | layers | stage 0 waits | stage 1 waits | time |"
    yield "|---:|---|---:|---:|---:|"
    for images in IMAGES:
        costs = [stage_costs(QWEN25_VL_7B, layout, images, 1 - images) for layout in SPLITS]
        first, *_ = times = [update_time(one, MICRO_BATCHES) for one in costs]
        for layout, one, time in zip(SPLITS, costs, times, strict=True):
            shares = (f"{100 * share:.0f} %" for share in waits(one, MICRO_BATCHES))
            cells = f"{100 * images:.0f} %", _split(layout), *shares, f"{time / first:.2f}"
            yield f"| {' | '.join(cells)} |"


def _split(layout: Layout) -> str:
    return " + ".join(str(len(one)) for one in layout.stages(QWEN25_VL_7B.facts.num_layers))


def _largest(rank: RankMemory, size: int) -> str:
    largest = rank.largest(size * GIB)
    return f"{largest:,}" if largest >= WORK.smallest else "no"


def _replica_row(example: Example) -> str:
    length = WORK.prompt + WORK.completion
    replica = replica_memory(example.model, example.replica, length, BUCKET_MIB)
    rooms = [replica.key_value_room(int(FRACTION * size * GIB)) for size in DEVICES]
    cells = [
        *(example.name, str(example.replica), number(replica.weights), number(replica.shadow)),
        f"{replica.key_value_token / KIB:,.0f}",
        *(f"{replica.sequences(room):,}" for room in rooms),
    ]
    return f"| {' | '.join(cells)} |"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "splits": _splits,
    "waiting": _waiting,
    "models": _models,
}


def rewrite(path: Path) -> None:
    path.write_text(refresh(path.read_text(encoding="utf-8")), encoding="utf-8")
