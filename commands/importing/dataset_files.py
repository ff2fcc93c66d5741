"""MindSpeed-RL's files of configs/datasets, which say how rows are prepared -> `trimaran data prepare`. Their meaning
and defaults: mindspeed_rl/config_cls/data_handler_config.py and datasets/data_handler.py of Ascend/MindSpeed-RL,
April 2026."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from commands.importing.conversion import SourceSystem
from commands.importing.rows import (
    NOT_SET,
    KeyOutcome,
    KeyRow,
    Theirs,
    ignored,
    is_on,
    own,
    refused,
    switch,
)
from trimaran.config.yaml_text import parse_yaml
from trimaran.data.recipes import RECIPES
from trimaran.data.sources import READERS
from trimaran.data.templates import TEMPLATES
from trimaran.errors import InputError

NAME = "NAME"
"""The setting of the recipe, the first word behind `trimaran data prepare`."""
HANDLERS = {
    "Math17kAlpacaStyleInstructionHandler": "math-17k",
    "R1AlpacaStyleInstructionHandler": "deepscaler",
    "AlpacaStyleInstructionHandler": "alpaca",
}
INSIDE = {"math-17k": {"prompt": "0.content", "response": "ground_truth"}}
"""Where a handler looks inside of the columns that map_keys name."""
FIELDS = ("prompt", "query", "response", "system")
TOKENS_ALONE = [
    "llama2",
    "llama3",
    "mistral",
    "mixtral",
    "gemma",
    "deepseek2",
    "deepseek2-lite",
    "minicpm3",
    "baichuan2",
    "deepseek3",
]
"""Their templates that are nothing but a model's own marks of turns."""
OTHERS = {
    **dict.fromkeys(
        ("empty", "trl", "default", "alpaca"),
        (
            "chat",
            "theirs leaves the model's own marks of turns out; here its chat template writes them",
        ),
    ),
    "deepseek3_r1": (
        "qwen_r1",
        "the same words, inside of the user's turn, and Qwen's system message",
    ),
}
"""Their templates -> the nearest of ours, and what differs."""


def _handler(value: Any, theirs: Theirs) -> KeyOutcome:
    if value not in HANDLERS:
        text = f"rows for GRPO are made by {', '.join(HANDLERS)}"
        return KeyOutcome("refused", f"{text}; pairs and process rewards are for other trainings")
    return KeyOutcome("mapped", "", {NAME: HANDLERS[value]})


def _input(value: Any, theirs: Theirs) -> KeyOutcome:
    if not value:
        return KeyOutcome("refused", "give input=FILE")
    if Path(str(value)).suffix in (".txt", ".py"):
        return KeyOutcome(
            "refused", f"rows are read from {', '.join(READERS)}, a folder of such, or a hub"
        )
    return KeyOutcome("mapped", "", {"--from": str(value)})


def _output(value: Any, theirs: Theirs) -> KeyOutcome:
    if not value:
        return KeyOutcome("refused", "give output_prefix=FOLDER/NAME")
    if Path(str(theirs["input"])).suffix in READERS:
        return KeyOutcome("mapped", "", {"-o": f"{value}.parquet"})
    return KeyOutcome("mapped", "", {"-o": str(value), "--split": "train"})


def _template(value: Any, theirs: Theirs) -> KeyOutcome:
    name, text = OTHERS.get(value, ("chat" if value in TOKENS_ALONE else value, ""))
    if name not in TEMPLATES:
        return KeyOutcome("refused", f"templates are {', '.join(TEMPLATES)}")
    recipe = RECIPES.get(HANDLERS.get(theirs["handler_name"], ""))
    settings = {} if recipe and recipe.template == name else {"--template": name}
    return KeyOutcome("noted" if text else "mapped", text, settings)


def _columns(theirs: Theirs) -> Mapping[str, Any]:
    """map_keys as an object, or as a text that holds one. Raises InputError."""
    given = theirs["map_keys"]
    if given is None:
        return theirs.under("map_keys")
    try:
        found = parse_yaml(given) if isinstance(given, str) else given
    except yaml.YAMLError:
        found = given
    if not isinstance(found, dict):
        raise InputError(f"{given!r} is no object of fields and columns")
    return cast(dict[str, Any], found)


def _map(value: Any, theirs: Theirs) -> KeyOutcome:
    name = HANDLERS.get(theirs["handler_name"], "alpaca")
    keys, inside = RECIPES[name].keys, INSIDE.get(name, {})
    columns = _columns(theirs)
    if unknown := [field for field in columns if field not in FIELDS]:
        return KeyOutcome(
            "refused", f"fields are {', '.join(FIELDS)} (given: {', '.join(unknown)})"
        )
    wanted = {
        field: ".".join(filter(None, (column, inside.get(field)))) if column else ""
        for field, column in columns.items()
    }
    words = [
        f"{field}={column}"
        for field, column in wanted.items()
        if column not in keys.get(field, [""])[:1]
    ]
    return KeyOutcome("mapped", "", {"--map": words} if words else {})


def _kept(value: Any, theirs: Theirs) -> KeyOutcome:
    names = [value] if isinstance(value, str) else list(value or [])
    kept = [name for name in names if name != "labels"]
    return KeyOutcome("mapped", "", {"--keep": kept} if kept else {})


def _length(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None:
        return NOT_SET
    model = theirs["tokenizer_name_or_path"]
    if not model:
        return KeyOutcome(
            "refused", "tokens are counted by a tokenizer: give tokenizer_name_or_path=FOLDER"
        )
    return KeyOutcome("mapped", "", {"--model": str(model), "--max-prompt-tokens": int(value) - 1})


def _thinking(value: Any, theirs: Theirs) -> KeyOutcome:
    if theirs["prompt_type"] != "qwen3":
        return KeyOutcome("ignored", "of qwen3 alone")
    on = is_on(value)
    counted = theirs["seq_length"] is not None
    text = f"give the run data.chat_template_kwargs.enable_thinking={'true' if on else 'false'}"
    return KeyOutcome("noted", text, {"--thinking": "on" if on else "off"} if counted else {})


def _workers(value: Any, theirs: Theirs) -> KeyOutcome:
    return KeyOutcome("mapped", "", {"--workers": int(value)} if int(value) > 1 else {})


def _cache(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None or Path(str(theirs["input"])).exists():
        return KeyOutcome("ignored", "no hub is asked")
    return KeyOutcome("mapped", "", {"--cache": str(value)})


ROWS: tuple[KeyRow, ...] = (
    own("handler_name", None, _handler),
    own("input", None, _input),
    own("output_prefix", None, _output),
    own("prompt_type", "empty", _template),
    own("map_keys", None, _map),
    own("map_keys.*", None, lambda value, theirs: KeyOutcome("mapped")),
    own("dataset_additional_keys", None, _kept),
    own("seq_length", None, _length),
    own("tokenizer_name_or_path", None, lambda value, theirs: KeyOutcome("mapped")),
    own("enable_thinking", False, _thinking),
    own("workers", 1, _workers),
    switch("overwrite_cache", "--overwrite", True),
    refused(
        "interleave_probs",
        "prepare each dataset, and give data.train of the run a list with weights",
    ),
    own("cache_dir", None, _cache),
    *ignored(
        "",
        "tokenizer_type tokenizer_not_use_fast prompt_type_path pack neat_pack append_eod"
        " make_vocab_size_divisible_by pad_vocab_size_to log_interval streaming json_keys n_subs script_data_dir seed",
        "rows stay texts in their order, which the run reads with its own model",
    ),
)

DATASET_FILES = SourceSystem("mindspeed-rl", "MindSpeed-RL's datasets", ("handler_name",), ROWS, {})


def prepare_command(tree: Mapping[str, Any]) -> str:
    """The command line of what `convert` made of such a file.

    Example: prepare_command({"NAME": "math-17k", "--from": "a.parquet", "-o": "b.parquet"})
    """
    words = ["trimaran", "data", "prepare", str(tree[NAME])]
    for option, value in tree.items():
        for one in cast(list[Any], value) if isinstance(value, list) else [value]:
            if option != NAME:
                words += [option] if one is True else [option, str(one)]
    return shlex.join(words)
