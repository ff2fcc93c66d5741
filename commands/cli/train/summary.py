"""The last words of a run: what it reached, where it lies, what to try next."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from trimaran.host.places import is_bucket
from trimaran.telemetry.metrics import GREEDY_CORRECT, MAJORITY_AT, PASS_AT

SAMPLES = "  read what it answers   {folder}/samples/\n"

Rewards = Mapping[str, float | None]

NEXT = """\
What to try next:
  see how it went        trimaran view {folder}
  in TensorBoard         tensorboard --logdir {folder}/tensorboard
{samples}  use the model          {use}
  another run            trimaran train CONFIG run.seed=2, or run.max_lag=1"""


def show_summary(folder: Path, console: Console) -> None:
    """Prints summary.json; without one (the run did not get so far) only where the run lies."""
    path, model = folder / "summary.json", ""
    if path.is_file():
        summary = json.loads(path.read_text(encoding="utf-8"))
        console.print()
        before, after = summary["heldout_before"], summary["heldout_after"]
        if before or after:
            console.print(_heldout_table(before or {}, after or {}))
        if shares := _shares(summary.get("validation") or {}):
            console.print("last validation: " + ", ".join(shares), highlight=False)
        console.print(_describe(summary), highlight=False)
        model = summary.get("model", str(folder / "model"))
    console.print(f"run folder: {folder}", highlight=False, soft_wrap=True)
    if model:
        short = _short(folder)
        samples = SAMPLES.format(folder=short) if (folder / "samples").is_dir() else ""
        text = NEXT.format(folder=short, samples=samples, use=_how_to_use(model))
        console.print(text, highlight=False, soft_wrap=True)


def _how_to_use(model: str) -> str:
    if is_bucket(model):
        return f"model.source={model} in another run fetches it"
    return f'AutoModelForCausalLM.from_pretrained("{_short(Path(model))}")'


def _heldout_table(before: Rewards, after: Rewards) -> Table:
    table = Table(title="held-out reward", title_justify="left", header_style="bold")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for name in ("greedy", "sampled"):
        values = (side.get(name) for side in (before, after))
        table.add_row(name, *("-" if value is None else f"{value:.3f}" for value in values))
    return table


def _shares(validation: Mapping[str, float]) -> list[str]:
    """What is correct, over all tasks; the numbers of each task stand in summary.json."""
    names = {
        re.compile(re.escape(GREEDY_CORRECT)): "greedy",
        re.compile(PASS_AT.format(r"(\d+)")): "pass@",
        re.compile(MAJORITY_AT.format(r"(\d+)")): "majority@",
    }
    return [
        f"{name}{''.join(found.groups())} {value:.3f}"
        for pattern, name in names.items()
        for key, value in validation.items()
        if (found := pattern.fullmatch(key))
    ]


def _describe(summary: Mapping[str, Any]) -> str:
    shares = {kind: summary[f"{kind}_share"] for kind in ("faulted", "indigestible")}
    faulted = "".join(
        f", {share:.1%} of the answers {kind}" for kind, share in shares.items() if share
    )
    if tainted := summary.get("tainted_groups"):
        faulted += f", {tainted} groups trained from weights in which a fault was found since"
    return (
        f"{summary['steps']} steps in {summary['seconds']:.0f} s,"
        f" {summary['samples_per_second']:.2f} samples/s,"
        f" {summary['tokens_per_second_per_device']:.1f} tokens/s for each of"
        f" {summary['num_devices']} devices (trainer and replicas),"
        f" seed {summary['seed']}{faulted}"
    )


def _short(folder: Path) -> str:
    try:
        return str(folder.relative_to(Path.cwd()))
    except ValueError:
        return str(folder)
