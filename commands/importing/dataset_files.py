"""MindSpeed-RL's files of configs/datasets, which say how rows are prepared -> `trimaran data prepare`. Their meaning
and defaults: mindspeed_rl/config_cls/data_handler_config.py and datasets/data_handler.py of Ascend/MindSpeed-RL,
April 2026."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from commands.importing.conversion import System
from commands.importing.rows import Outcome, Row, Theirs, ignored, is_on, only, own, part
from trimaran.config.yaml_text import parse_yaml
from trimaran.data.recipes import RECIPES
from trimaran.data.sources import READERS
from trimaran.data.templates import TEMPLATES
from trimaran.errors import InputError

NAME = "NAME"
"""Of the recipe, the first word behind `trimaran data prepare`."""
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


def _handler(value: Any, theirs: Theirs) -> Outcome:
    if value not in HANDLERS:
        text = f"rows for GRPO are made by {', '.join(HANDLERS)}"
        return Outcome("refused", f"{text}; pairs and process rewards are for other trainings")
    return Outcome("mapped", "", {NAME: HANDLERS[value]})


def _input(value: Any, theirs: Theirs) -> Outcome:
    if not value:
        return Outcome("refused", "give input=FILE")
    if Path(str(value)).suffix in (".txt", ".py"):
        return Outcome(
            "refused", f"rows are read from {', '.join(READERS)}, a folder of such, or a hub"
        )
    return Outcome("mapped", "", {"--from": str(value)})


def _output(value: Any, theirs: Theirs) -> Outcome:
    if not value:
        return Outcome("refused", "give output_prefix=FOLDER/NAME")
    if Path(str(theirs["input"])).suffix in READERS:
        return Outcome("mapped", "", {"-o": f"{value}.parquet"})
    return Outcome("mapped", "", {"-o": str(value), "--split": "train"})


def _template(value: Any, theirs: Theirs) -> Outcome:
    name, text = OTHERS.get(value, ("chat" if value in TOKENS_ALONE else value, ""))
    if name not in TEMPLATES:
        return Outcome("refused", f"templates are {', '.join(TEMPLATES)}")
    recipe = RECIPES.get(HANDLERS.get(theirs["handler_name"], ""))
    settings = {} if recipe and recipe.template == name else {"--template": name}
    return Outcome("noted" if text else "mapped", text, settings)


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


def _map(value: Any, theirs: Theirs) -> Outcome:
    name = HANDLERS.get(theirs["handler_name"], "alpaca")
    keys, inside = RECIPES[name].keys, INSIDE.get(name, {})
    columns = _columns(theirs)
    if unknown := [field for field in columns if field not in FIELDS]:
        return Outcome("refused", f"fields are {', '.join(FIELDS)} (given: {', '.join(unknown)})")
    wanted = {
        field: ".".join(filter(None, (column, inside.get(field)))) if column else ""
        for field, column in columns.items()
    }
    words = [
        f"{field}={column}"
        for field, column in wanted.items()
        if column not in keys.get(field, [""])[:1]
    ]
    return Outcome("mapped", "", {"--map": words} if words else {})


def _kept(value: Any, theirs: Theirs) -> Outcome:
    names = [value] if isinstance(value, str) else list(value or [])
    kept = [name for name in names if name != "labels"]
    return Outcome("mapped", "", {"--keep": kept} if kept else {})


def _length(value: Any, theirs: Theirs) -> Outcome:
    if value is None:
        return Outcome("ignored", "not set")
    model = theirs["tokenizer_name_or_path"]
    if not model:
        return Outcome(
            "refused", "tokens are counted by a tokenizer: give tokenizer_name_or_path=FOLDER"
        )
    return Outcome("mapped", "", {"--model": str(model), "--max-prompt-tokens": int(value) - 1})


def _thinking(value: Any, theirs: Theirs) -> Outcome:
    if theirs["prompt_type"] != "qwen3":
        return Outcome("ignored", "of qwen3 alone")
    on = is_on(value)
    counted = theirs["seq_length"] is not None
    text = f"give the run data.chat_template_kwargs.enable_thinking={'true' if on else 'false'}"
    return Outcome("noted", text, {"--thinking": "on" if on else "off"} if counted else {})


def _workers(value: Any, theirs: Theirs) -> Outcome:
    return Outcome("mapped", "", {"--workers": int(value)} if int(value) > 1 else {})


def _cache(value: Any, theirs: Theirs) -> Outcome:
    if value is None or Path(str(theirs["input"])).exists():
        return Outcome("ignored", "no hub is asked")
    return Outcome("mapped", "", {"--cache": str(value)})


def _overwrite(value: Any, theirs: Theirs) -> Outcome:
    return Outcome("mapped", "", {"--overwrite": True} if is_on(value) else {})


def _each(names: str, reason: str) -> tuple[Row, ...]:
    return tuple(ignored(name, reason) for name in names.split())


ROWS: tuple[Row, ...] = (
    own(
        "handler_name",
        NAME,
        None,
        ", ".join(f"{theirs} → {ours}" for theirs, ours in HANDLERS.items())
        + ". Another one is refused: it is not for GRPO",
        _handler,
    ),
    own("input", "--from", None, "a file, a folder or a hub id", _input),
    own(
        "output_prefix",
        "-o",
        None,
        "PREFIX.parquet; of a folder or a hub id the folder PREFIX, with the split train",
        _output,
    ),
    own(
        "prompt_type",
        "--template",
        "empty",
        "qwen, qwen_r1, qwen_math_r1 and qwen3 by their names; those of marks of turns alone → chat, as the model's"
        " own chat template writes them; empty, trl, default, alpaca → chat, and deepseek3_r1 → qwen_r1, with a note."
        " Templates for tools are refused",
        _template,
    ),
    own(
        "map_keys",
        "--map",
        None,
        "FIELD=COLUMN, where the recipe has another one",
        _map,
    ),
    part("map_keys.*", "map_keys"),
    own(
        "dataset_additional_keys",
        "--keep",
        None,
        "labels are the tokens of the answer, which is always in the file",
        _kept,
    ),
    own(
        "seq_length",
        "--model, --max-prompt-tokens",
        None,
        "theirs drops a prompt of so many tokens, ours of one more than --max-prompt-tokens",
        _length,
    ),
    part(
        "tokenizer_name_or_path",
        "seq_length",
        None,
        "--model, with `seq_length`; rows are texts, which the run's own model reads",
    ),
    own(
        "enable_thinking",
        "--thinking",
        False,
        "with qwen3: the run needs it in data.chat_template_kwargs",
        _thinking,
    ),
    own("workers", "--workers", 1, "where there are several", _workers),
    own("overwrite_cache", "--overwrite", False, "true", _overwrite),
    only(
        "interleave_probs",
        None,
        (None,),
        "one dataset",
        "prepare each dataset, and give the run's data.train a list with weights",
    ),
    own("cache_dir", "--cache", None, "of a hub's dataset alone", _cache),
    *_each(
        "tokenizer_type tokenizer_not_use_fast prompt_type_path",
        "the model of the run has its tokenizer and its template",
    ),
    *_each("pack neat_pack append_eod", "the trainer packs what it trains on"),
    *_each(
        "make_vocab_size_divisible_by pad_vocab_size_to", "the vocabulary is that of the checkpoint"
    ),
    *_each(
        "log_interval streaming json_keys n_subs script_data_dir",
        "rows are read one by one, and counted at the end",
    ),
    ignored("seed", "rows stay in their order; data.shuffle and run.seed are the run's", 1234),
)

DATASET_FILES = System("mindspeed-rl", "MindSpeed-RL's datasets", ("handler_name",), ROWS, {})


def prepare_command(tree: Mapping[str, Any]) -> str:
    """Of what `convert` made of such a file.

    Example: prepare_command({"NAME": "math-17k", "--from": "a.parquet", "-o": "b.parquet"})
    """
    words = ["trimaran", "data", "prepare", str(tree[NAME])]
    for option, value in tree.items():
        for one in cast(list[Any], value) if isinstance(value, list) else [value]:
            if option != NAME:
                words += [option] if one is True else [option, str(one)]
    return shlex.join(words)
