"""`trimaran experts`: how a run's steps have loaded the experts of its model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from commands.cli.manage.find_run import find_folder
from trimaran.errors import InputError
from trimaran.telemetry.expert_loads import LayerFigures, Totals, read_loads, read_newest


def experts(options: argparse.Namespace) -> int:
    """Raises InputError where the run has no loads of these steps, or the model no such layer."""
    folder = find_folder(options.run)
    what, layers = _loads(folder, options.steps)
    if options.layer is None:
        table = layers_table(layers)
    elif (tokens_E := layers.get(options.layer)) is not None:
        table = experts_table(tokens_E)
        what += f", layer {options.layer}"
    else:
        raise InputError(f"--layer {options.layer}: there are layers {_span([*layers])}")
    console = Console(soft_wrap=True)
    console.print(f"{folder.name}, {what}: packed tokens by expert", highlight=False, markup=False)
    console.print(table)
    return 0


def _loads(folder: Path, steps: str | None) -> tuple[str, dict[int, list[int]]]:
    """Of which steps, in words, and the tokens by layer and expert."""
    if steps is None:
        if (newest := read_newest(folder)) is None:
            raise InputError(f"{folder}: no step has written its loads of experts yet")
        return f"step {newest.step}", {one.layer: list(one.tokens_E) for one in newest.layers}
    first, last = _parse_steps(steps)
    totals = Totals()
    for one in read_loads(folder, first, last):
        totals.add(one)
    if not totals.steps:
        raise InputError(f"--steps {steps}: {folder.name} has no loads of experts of them")
    return f"{len(totals.steps)} steps, {_span(totals.steps)}", totals.layers


def _parse_steps(text: str) -> tuple[int, int | None]:
    """The first one, and the last one where there is one."""
    first, colon, last = text.partition(":")
    try:
        begin = int(first or 0)
        end = int(last) if last else None if colon else begin
    except ValueError:
        raise InputError(f"--steps {text}: give 5:10, 5:, :10 or 5") from None
    if end is not None and end < begin:
        raise InputError(f"--steps {text}: ends before it begins")
    return begin, end


def _span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}"


def layers_table(layers: Mapping[int, Sequence[int]]) -> Table:
    """A row a layer."""
    table = _table(
        "layer", "tokens", "most loaded", "of mean", "least loaded", "of mean", "variation"
    )
    for layer, tokens_E in sorted(layers.items()):
        one = LayerFigures.of(tokens_E)
        table.add_row(
            str(layer),
            f"{one.tokens:,}",
            str(one.most),
            f"{tokens_E[one.most] / one.mean:.2f}",
            str(one.least),
            f"{tokens_E[one.least] / one.mean:.2f}",
            f"{one.variation:.3f}",
        )
    return table


def experts_table(tokens_E: Sequence[int]) -> Table:
    """A row an expert of one layer."""
    mean = LayerFigures.of(tokens_E).mean
    table = _table("expert", "tokens", "of mean")
    for expert, tokens in enumerate(tokens_E):
        table.add_row(str(expert), f"{tokens:,}", f"{tokens / mean:.2f}")
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
