"""MindSpeed-RL's files of configs/datasets, which say how rows are prepared -> `trimaran data prepare`. Their meaning
and defaults: mindspeed_rl/config_cls/data_handler_config.py and datasets/data_handler.py of Ascend/MindSpeed-RL,
April 2026."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from commands.importing.conversion import SourceSystem
from commands.importing.rows import (
    NOT_SET,
    KeyOutcome,
    Theirs,
    becomes,
    choice,
    deny,
    ignored,
    own,
    parts,
)
from trimaran.data.recipes import RECIPES
from trimaran.data.sources import READERS
from trimaran.data.templates import TEMPLATES

NAME = "NAME"
"""The setting of the recipe, the first word behind `trimaran data prepare`."""
HANDLERS = {
    "Math17kAlpacaStyleInstructionHandler": "math-17k",
    "R1AlpacaStyleInstructionHandler": "deepscaler",
    "AlpacaStyleInstructionHandler": "alpaca",
}
INSIDE = {"math-17k": {"prompt": "0.content", "response": "ground_truth"}}
"""Where a handler looks inside of the columns that map_keys name."""
OF_GRPO = "pairs and process rewards are for other trainings: "
MARKS = "theirs leaves the model's own marks of turns out; here its chat template writes them"
OTHERS = {
    "empty": ("chat", MARKS),
    "default": ("chat", MARKS),
    "alpaca": ("chat", MARKS),
    "deepseek3_r1": (
        "qwen_r1",
        "the same words, inside of the user's turn, and Qwen's system message",
    ),
}
"""Their templates -> the nearest of ours, and what differs."""


def _input(value: Any, theirs: Theirs) -> KeyOutcome:
    if not value or Path(str(value)).suffix in (".txt", ".py"):
        return deny(f"give input=FILE: {', '.join(READERS)}, or a folder of such")
    return becomes({"--from": str(value)})


def _output(value: Any, theirs: Theirs) -> KeyOutcome:
    if not value:
        return deny("give output_prefix=FOLDER/NAME")
    if Path(str(theirs["input"])).suffix in READERS:
        return becomes({"-o": f"{value}.parquet"})
    return becomes({"-o": str(value), "--split": "train"})


def _template(value: Any, theirs: Theirs) -> KeyOutcome:
    name, text = OTHERS.get(value, (value, ""))
    if name not in TEMPLATES:
        return deny(f"templates are {', '.join([*TEMPLATES, *OTHERS])}")
    recipe = RECIPES.get(HANDLERS.get(theirs["handler_name"], ""))
    is_recipes = recipe is not None and recipe.template == name
    return becomes({} if is_recipes else {"--template": name}, text)


def _columns(value: Any, theirs: Theirs) -> KeyOutcome:
    """Those that are not the recipe's own."""
    name = HANDLERS.get(theirs["handler_name"], "alpaca")
    keys, inside = RECIPES[name].keys, INSIDE.get(name, {})
    words: list[str] = []
    for field, column in theirs.under("map_keys").items():
        path = ".".join(filter(None, (column, inside.get(field)))) if column else ""
        words += [] if path in keys.get(field, [""])[:1] else [f"{field}={path}"]
    return becomes({"--map": words} if words else {})


def _kept(value: Any, theirs: Theirs) -> KeyOutcome:
    kept = [name for name in value or () if name != "labels"]
    return becomes({"--keep": kept} if kept else {})


def _length(value: Any, theirs: Theirs) -> KeyOutcome:
    model = theirs["tokenizer_name_or_path"]
    if value is None:
        return NOT_SET
    if not model:
        return deny("tokens are counted by a tokenizer: give tokenizer_name_or_path=FOLDER")
    return becomes({"--model": str(model), "--max-prompt-tokens": int(value) - 1})


def _workers(value: Any, theirs: Theirs) -> KeyOutcome:
    return becomes({"--workers": int(value)} if int(value) > 1 else {})


DATASET_FILES = SourceSystem(
    "mindspeed-rl",
    "MindSpeed-RL's datasets",
    ("handler_name",),
    (
        choice("handler_name", NAME, None, HANDLERS, OF_GRPO),
        own("input", None, _input),
        own("output_prefix", None, _output),
        own("prompt_type", "empty", _template),
        own("map_keys", None, _columns),
        *parts({f"map_keys.{field}": None for field in ("prompt", "query", "response", "system")}),
        own("dataset_additional_keys", None, _kept),
        own("seq_length", None, _length),
        *parts({"tokenizer_name_or_path": None}),
        own("workers", 1, _workers),
        *ignored(
            "tokenizer_type log_interval", "rows stay texts, which the run reads by its own model"
        ),
    ),
    {},
)


def prepare_command(tree: Mapping[str, Any]) -> str:
    """The command line of what `convert` made of such a file.

    Example: prepare_command({"NAME": "math-17k", "--from": "a.parquet", "-o": "b.parquet"})
    """
    words = ["trimaran", "data", "prepare", str(tree[NAME])]
    for option, value in tree.items():
        for one in cast(list[Any], value) if isinstance(value, list) else [value]:
            words += [] if option == NAME else [option, str(one)]
    return shlex.join(words)
