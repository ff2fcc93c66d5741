"""Prompts from JSONL or Parquet, and the order in which a run meets them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from trimaran.choices import DATASET_FORMATS
from trimaran.config import DataSection
from trimaran.errors import InputError
from trimaran.types import Message, Prompt


def load_prompts(path: Path, data: DataSection) -> list[Prompt]:
    """One prompt a row: a text or {"role", "content"} messages, an answer, the rest as extras.

    Example:
        prompts = load_prompts(Path("examples/addition/train.jsonl"), config.data)
        prompts[0].messages[-1].text  # "What is 0 + 0?"

    Raises InputError when the file is missing or empty, or with the place of the first bad row.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such dataset; give a JSONL or Parquet file")
    read = find_format(path)
    prompts = [_prompt(path, line, row, data) for line, row in read(path)]
    if not prompts:
        raise InputError(f"{path}: holds no rows; one prompt a row is needed")
    return prompts


def prompt_at(number: int, prompts: Sequence[Prompt], seed: int, shuffle: bool = True) -> Prompt:
    """The prompt of group `number`: each epoch meets every prompt once, in an order of its own."""
    epoch, place = divmod(number, len(prompts))
    return prompts[_permutation(seed, epoch, len(prompts))[place] if shuffle else place]


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, length: int) -> list[int]:
    order = list(range(length))
    random.Random(f"prompts:{seed}:{epoch}").shuffle(order)
    return order


class Read(Protocol):
    """What `trimaran.choices.DATASET_FORMATS` names: reads a file of one format.

    Example:
        def read_csv(path):
            with path.open(encoding="utf-8", newline="") as file:
                yield from enumerate(csv.DictReader(file), start=2)
    """

    def __call__(self, path: Path, /) -> Iterator[tuple[int, Any]]:
        """(line, row) of each prompt. Lines name a row in messages and in `Prompt.prompt_id`, so no
        two are equal. A row is a dict with the keys that `data` names.

        Raises InputError that says where the file is broken.
        """
        ...


def find_format(path: Path) -> Read:
    """By the suffix of the file's name; one that nobody provides is read as JSONL."""
    suffix = path.suffix.removeprefix(".")
    return DATASET_FORMATS.load(suffix if suffix in DATASET_FORMATS.names() else "jsonl")


def read_jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for line, data in enumerate(file, start=1):
            if not data.strip():
                continue
            try:
                yield line, json.loads(data)
            except ValueError as error:
                raise InputError(f"{path}:{line}: not JSON ({error})") from None


def read_parquet(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        batches = parquet.ParquetFile(path).iter_batches()
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not Parquet ({error})") from None


def _prompt(path: Path, line: int, row: Any, data: DataSection) -> Prompt:
    place = f"{path}:{line}"
    if not isinstance(row, dict):
        raise InputError(f"{place}: a row must be an object with {data.prompt_key!r}")
    for key, setting in ((data.prompt_key, "prompt_key"), (data.answer_key, "answer_key")):
        if row.get(key) is None:
            raise InputError(
                f"{place}: no {key!r}; the row has {', '.join(map(repr, row)) or 'no keys'}"
                f" (data.{setting} names the column)"
            )
    if bad := next((key for key, value in row.items() if not _is_unicode(_text(value))), None):
        raise InputError(f"{place}: {bad!r} holds half of a surrogate pair, which is no text")
    used = (data.prompt_key, data.answer_key)
    return Prompt(
        prompt_id=f"{path.name}:{line}",
        messages=_messages(place, row[data.prompt_key], data),
        task=data.task,
        answer=_text(row[data.answer_key]),
        extras={k: _text(v) for k, v in row.items() if k not in used and v is not None},
    )


def _messages(place: str, value: Any, data: DataSection) -> tuple[Message, ...]:
    if isinstance(value, str) and value:
        system = (Message("system", data.system),) if data.system is not None else ()
        return (*system, Message("user", value))
    if isinstance(value, list) and value and all(_is_message(item) for item in value):
        return tuple(Message(item["role"], item["content"]) for item in value)
    raise InputError(
        f"{place}: {data.prompt_key!r} must be a text or a list of"
        ' {"role": text, "content": text} messages, and not empty'
    )


def _is_message(item: Any) -> bool:
    return isinstance(item, Mapping) and all(
        isinstance(item.get(key), str) for key in ("role", "content")
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
