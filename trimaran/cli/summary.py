"""The last words of a run: what it reached, where it lies, what to try next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

NEXT = """\
What to try next:
  see how it went        {folder}/curve.png and {folder}/timeline.png
  in TensorBoard         tensorboard --logdir {folder}/tensorboard
  read what it answers   {folder}/samples/
  use the model          AutoModelForCausalLM.from_pretrained("{folder}/model")
  another run            trimaran train CONFIG run.seed=2, or run.max_lag=1"""


def show_summary(folder: Path, console: Console) -> None:
    """Prints summary.json; without one (the run did not get so far) only where the run lies."""
    path = folder / "summary.json"
    if path.is_file():
        summary = json.loads(path.read_text(encoding="utf-8"))
        console.print()
        console.print(_heldout_table(summary))
        console.print(_describe(summary), highlight=False)
    console.print(f"run folder: {folder}", highlight=False, soft_wrap=True)
    if (folder / "model").is_dir():
        console.print(NEXT.format(folder=_short(folder)), highlight=False, soft_wrap=True)


def _heldout_table(summary: Mapping[str, Any]) -> Table:
    table = Table(title="held-out accuracy", title_justify="left", header_style="bold")
    for heading in ("", "before", "after"):
        table.add_column(heading, justify="right" if heading else "left")
    before, after = summary.get("heldout_before") or {}, summary.get("heldout_after") or {}
    for name in before.keys() | after.keys():
        cells = (f"{side[name]:.3f}" if name in side else "-" for side in (before, after))
        table.add_row(name, *cells)
    return table


def _describe(summary: Mapping[str, Any]) -> str:
    return (
        f"{summary['steps']} steps in {summary['seconds']:.0f} s,"
        f" {summary['samples_per_second']:.2f} samples/s, seed {summary['seed']}"
    )


def _short(folder: Path) -> str:
    try:
        return str(folder.relative_to(Path.cwd()))
    except ValueError:
        return str(folder)
