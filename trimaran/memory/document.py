"""The tables of docs/parallelism.md, between two marks in it:

python -m trimaran.memory docs/parallelism.md
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trimaran.memory.models import EXAMPLES, Example
from trimaran.memory.rank import Choices, RankMemory, rank_memory
from trimaran.memory.replica import replica_memory
from trimaran.memory.table import KIB, number
from trimaran.memory.work import Work
from trimaran.parallel import Layout

BEGIN, END = "<!-- tables of trimaran.memory: begin -->", "<!-- tables of trimaran.memory: end -->"
DEVICES = (80, 64)
"""GiB of one."""
GIB = 1 << 30
WORK = Work(prompt=1024, completion=2048, group=8, groups=64)
FRACTION = 0.85
"""`rollout.memory_fraction` unless a run says otherwise."""
BUCKET_MIB = 64
SHARED = Choices(sequence_parallel=True, distributed_optimizer=True)


def refresh(text: str) -> str:
    """A document with the tables of today. Raises ValueError where it lacks the marks."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the document lacks {BEGIN} and {END}")
    return "\n".join([before + BEGIN, *tables(), END + after])


def tables() -> Iterator[str]:
    sizes = " | ".join(f"on {size} GiB" for size in DEVICES)
    rule = "---:|" * len(DEVICES)
    yield ""
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
    yield ""


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


def rewrite(path: Path) -> None:
    path.write_text(refresh(path.read_text(encoding="utf-8")), encoding="utf-8")
