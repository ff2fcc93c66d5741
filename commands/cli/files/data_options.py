"""The options of `trimaran data`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from commands.cli.adding import Add, add_command, add_group, add_overrides
from trimaran.data.recipes import RECIPES
from trimaran.data.templates import TEMPLATES

DATA_EXAMPLES = """\
docs/data.md explains names, templates and the card. RUN is a run's YAML file, or a dataset's.
examples:
  trimaran data prepare gsm8k --from downloads/gsm8k -o data/gsm8k
  trimaran data prepare math-17k --from dapo-math-17k.parquet -o data/math-17k/train.parquet
  trimaran data prepare deepscaler --from deepscaler.json -o data/deepscaler --hold-out 500 \\
      --model models/Qwen2.5-7B --max-prompt-tokens 2048 --workers 8
  trimaran data prepare alpaca --from mine.csv -o data/mine --map prompt=task --map response=label
  trimaran data show run.yaml                        what the model will see first, with its tokens
  trimaran data show data/geo3k/train.parquet data.image_key=images model.path=models/Qwen2.5-VL-3B
  trimaran data check run.yaml                       reads every row, prepares every image
exit codes: 1 when check finds a bad row, 2 for bad input
"""


def at_least(least: int) -> Callable[[str], int]:
    """A type for options: a whole number, not below `least`."""

    def whole(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return number

    whole.__name__ = "whole number"  # as argparse calls it
    return whole


def add_data_commands(commands: Any) -> None:
    words = "datasets: prepare one, show what a model will see, check every row"
    actions = add_group(commands, "data", words, DATA_EXAMPLES)
    words = "write a Parquet file that a run reads, and a card"
    _add_prepare(add_command(actions, "prepare", words, "files.data:prepare_all"))
    words = "what the model will see, and what judges it"
    show = add_command(actions, "show", words, "files.data:show")
    show("--first", type=at_least(0), default=0, metavar="N", help="position (default 0)")
    show("--count", type=at_least(1), default=3, metavar="N", help="prompts (default 3)")
    show("--validation", action="store_true", help="held-out prompts instead")
    show("--images", metavar="FOLDER", help="where prepared images are written")
    words = "read every row, prepare every image, name the bad"
    check = add_command(actions, "check", words, "files.data:check")
    check("--limit", type=at_least(0), default=20, metavar="N", help="rows that are named")
    for add in (show, check):
        add("config", metavar="RUN", help="a run's YAML file, or a dataset's file")
        add_overrides(add)


def _add_prepare(add: Add) -> None:
    add("name", choices=tuple(RECIPES), metavar="NAME", help=", ".join(RECIPES))
    add("--from", dest="source", required=True, metavar="FILE|FOLDER", help="what is prepared")
    add("-o", "--output", required=True, metavar="OUT", help="a folder, or one .parquet file")
    add("--split", help="only this one (default: all that are found)")
    add(
        "--map",
        action="append",
        default=[],
        metavar="FIELD=COLUMN",
        help="where prompt, query, response, system, history, messages or images stand; a.0.b is inside"
        " of a column; may be repeated",
    )
    add(
        "--template", choices=tuple(TEMPLATES), help="around each question: " + ", ".join(TEMPLATES)
    )
    add("--system", metavar="TEXT", help="the system message of every row; '' for none")
    add(
        "--thinking",
        choices=("on", "off"),
        help="tokens are counted so; the run needs the same in data.chat_template_kwargs",
    )
    words = "also keep it; may be repeated"
    add("--keep", action="append", default=[], metavar="COLUMN", help=words)
    add("--unique", action="store_true", help="drop repetitions")
    add("--model", metavar="FOLDER", help="whose tokenizer counts a prompt's tokens")
    add("--max-prompt-tokens", type=at_least(1), metavar="N", help="drop longer prompts")
    for name, default in (("min", 262144), ("max", 4194304)):
        words = f"as data.{name}_pixels of the run"
        add(f"--{name}-pixels", type=at_least(1), default=default, metavar="N", help=words)
    words = "rows for <split>-held-out.parquet"
    add("--hold-out", type=at_least(0), default=0, metavar="N", help=words)
    add("--seed", type=int, default=1, metavar="N", help="which rows are held out (default 1)")
    add("--limit", type=at_least(1), metavar="N", help="read only the first N rows")
    add("--workers", type=at_least(1), default=1, metavar="N", help="processes (default 1)")
    add("--overwrite", action="store_true", help="make it again, also where nothing has changed")
