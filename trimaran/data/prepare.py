"""Files that others have written -> a Parquet file that a run reads, and a card that says what became of
each row."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

from trimaran.data.arrow import parquet, pyarrow
from trimaran.data.make_row import CountTokens, Made, PreparePlan, make_row
from trimaran.data.recipes import find
from trimaran.data.rows import ParquetRows
from trimaran.data.sources import CARD, Source, SourceRow, digest_of, named
from trimaran.errors import InputError

CardTree = dict[str, Any]
MakeCounter = Callable[[PreparePlan], CountTokens]
"""Makes a counter for the plan's model; called once in each process."""
CHUNK = 64
"""Rows that a worker takes at a time."""
GROUP_ROWS = 512
"""Rows of a row group of the file: what is read for one row."""
GROUP_IMAGES = 64
"""The same of a file with images."""
NAMED_ROWS = 20
"""Rows that the card names for a reason."""


@dataclass(slots=True)
class Counts:
    """The counts of one file."""

    read: int = 0
    written: int = 0
    held_out: int = 0
    images: int = 0
    """Images of all rows of both files."""
    absent: set[str] = field(default_factory=set[str])
    """Columns to keep that no row has had so far."""
    dropped: Counter[str] = field(default_factory=Counter[str])
    rows: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Reason -> the first NAMED_ROWS places."""
    tokens: list[int] = field(default_factory=list[int])

    def drop(self, place: str, reason: str) -> None:
        self.dropped[reason] += 1
        named = self.rows.setdefault(reason, [])
        if len(named) < NAMED_ROWS:
            named.append(place)


def prepare(
    source: Source,
    plan: PreparePlan,
    path: Path,
    make_counter: MakeCounter,
    workers: int = 1,
) -> CardTree:
    """Writes `path`, the file beside it of what is held out, and the card, which it returns.

    Raises InputError where nothing is left, or a file cannot be read or written.
    """
    counts = Counts(absent=set(plan.kept))
    files = [path] + ([held_out_path(path)] if plan.hold_out else [])
    made = _unique(_make(source, plan, make_counter, workers), plan.unique)
    kept = (one.columns for one in _kept(made, counts))
    rows = cast(Iterator[Mapping[str, Any]], kept)
    with named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if plan.hold_out:
            counts.written, counts.held_out = _write_both(path, rows, plan, source.name)
        else:
            counts.written = _write(path, rows)
        if counts.written and (empty := _empty(plan, counts)):
            for file in files:
                _drop_columns(file, empty)
    if not counts.written:
        path.unlink(missing_ok=True)
        reasons = "; ".join(f"{number} {text}" for text, number in counts.dropped.most_common(3))
        raise InputError(
            f"{source.name}: no row of {counts.read} is left ({reasons or 'the source is empty'});"
            " --map names the columns"
        )
    card = _card(source, plan, counts, files)
    card_path(path).write_text(json.dumps(card, ensure_ascii=False, indent=2) + "\n", "utf-8")
    return card


def card_path(path: Path) -> Path:
    return path.with_name(path.stem + CARD)


def held_out_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}-held-out.parquet")


def is_current(source: Source, plan: PreparePlan, path: Path) -> bool:
    """Whether the file is there, as the card says, and was made of the same source in the same way."""
    try:
        card = json.loads(card_path(path).read_text("utf-8"))
        same = card["plan"] == _plan_tree(plan) and card["source"] == source.describe()
        names = card["files"].items()
        whole = all(digest_of(path.with_name(name)) == digest for name, digest in names)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False
    return same and whole


def _make(
    source: Source, plan: PreparePlan, make_counter: MakeCounter, workers: int
) -> Iterator[Made]:
    rows = _with_columns(islice(source.rows(), plan.limit), source.name, plan.mapped)
    if workers == 1:
        _begin(plan, make_counter)
        yield from map(_make_here, rows)
        return
    if plan.model:
        make_counter(plan)  # here an error is raised as it is; in a worker it would break the pool
    # Spawned: a tokenizer's threads do not outlive a fork.
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, (plan, make_counter)) as pool:
        for made in _in_order(pool, _chunks(rows), 2 * workers):
            yield from made


def _with_columns(
    rows: Iterable[SourceRow], name: str, mapped: Sequence[str]
) -> Iterator[SourceRow]:
    """Raises InputError behind the last row where no row has a column that --map names."""
    missing, last = set(mapped), None
    for last in rows:
        missing = {path for path in missing if find(last.values, path) is None}
        yield last
    if missing and last:
        raise InputError(
            f"--map: no row of {name} has {', '.join(sorted(missing))}; the last one has"
            f" {', '.join(map(str, last.values))}"
        )


_plan: PreparePlan | None = None
_count: CountTokens | None = None


def _begin(plan: PreparePlan, make_counter: MakeCounter) -> None:
    global _plan, _count
    _plan, _count = plan, make_counter(plan) if plan.model else None


def _make_here(row: SourceRow) -> Made:
    assert _plan
    return make_row(row, _plan, _count)


def _make_chunk(rows: Sequence[SourceRow]) -> list[Made]:
    return [_make_here(row) for row in rows]


def _chunks(rows: Iterable[SourceRow]) -> Iterator[list[SourceRow]]:
    rows = iter(rows)
    while chunk := list(islice(rows, CHUNK)):
        yield chunk


def _in_order(
    pool: Executor, chunks: Iterator[list[SourceRow]], ahead: int
) -> Iterator[list[Made]]:
    """Results in the order of the chunks, `ahead` of them under way: a source may be larger than memory."""
    waiting = [pool.submit(_make_chunk, chunk) for chunk in islice(chunks, ahead)]
    while waiting:
        yield waiting.pop(0).result()
        waiting += [pool.submit(_make_chunk, chunk) for chunk in islice(chunks, 1)]


def _unique(made: Iterable[Made], unique: bool) -> Iterator[Made]:
    """16 bytes a row are kept."""
    seen: set[bytes] = set()
    for one in made:
        if unique and one.columns is not None:
            key = blake2b(digest_size=16)
            key.update(json.dumps([one.columns["prompt"], one.columns["answer"]]).encode())
            for image in one.columns.get("images", ()):
                key.update(image["bytes"])
            if key.digest() in seen:
                yield Made(one.place, None, "a repetition")
                continue
            seen.add(key.digest())
        yield one


def _kept(made: Iterable[Made], counts: Counts) -> Iterator[Made]:
    for one in made:
        counts.read += 1
        if one.columns is None:
            counts.drop(one.place, one.reason)
            continue
        if one.tokens is not None:
            counts.tokens.append(one.tokens)
        counts.images += len(one.columns.get("images", ()))
        counts.absent = {name for name in counts.absent if one.columns[name] is None}
        yield one


def _draw(length: int, plan: PreparePlan, name: str) -> set[int]:
    if plan.hold_out >= length:
        raise InputError(f"--hold-out {plan.hold_out}: {name} has {length} rows; hold out fewer")
    rng = random.Random(f"hold-out:{plan.seed}:{name}")
    return set(rng.sample(range(length), plan.hold_out))


def _write_both(
    path: Path, rows: Iterable[Mapping[str, Any]], plan: PreparePlan, name: str
) -> tuple[int, int]:
    """Into a file of all rows first: which are drawn depends on how many they are. Returns how many rows
    `path` has, and how many are held out."""
    whole = path.with_name(f"{path.name}.whole.partial")
    try:
        chosen = _draw(_write(whole, rows), plan, name)
        held_out = _write(held_out_path(path), (row for n, row in _read(whole) if n in chosen))
        return _write(path, (row for n, row in _read(whole) if n not in chosen)), held_out
    finally:
        whole.unlink(missing_ok=True)


def _read(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    return ((number - 1, row) for number, row in ParquetRows(path))


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Beside the file first, so that half of one is never taken for it."""
    rows, number = iter(rows), 0
    with _beside(path) as partial:
        first = next(rows, None)
        if first is None:
            return 0
        schema = _schema(first)
        size = GROUP_IMAGES if "images" in first else GROUP_ROWS
        with parquet().ParquetWriter(partial, schema) as file:
            group = [first, *islice(rows, size - 1)]
            while group:
                file.write_table(pyarrow().Table.from_pylist(group, schema))
                number += len(group)
                group = list(islice(rows, size))
        return number


def _empty(plan: PreparePlan, counts: Counts) -> set[str]:
    """Columns that no row of either file has, and that were not asked for by name."""
    images = {"images"} & set(plan.recipe.columns) if not counts.images else set[str]()
    return images | counts.absent.difference(plan.keep)


def _drop_columns(path: Path, names: set[str]) -> None:
    with parquet().ParquetFile(path) as file, _beside(path) as partial:
        fields = [field for field in file.schema_arrow if field.name not in names]
        schema = pyarrow().schema(fields)
        with parquet().ParquetWriter(partial, schema) as writer:
            for batch in file.iter_batches(GROUP_ROWS, columns=schema.names):
                writer.write_batch(batch)


@contextmanager
def _beside(path: Path) -> Generator[Path]:
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        if partial.exists():
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _schema(row: Mapping[str, Any]) -> Any:
    arrow = pyarrow()
    text = arrow.string()
    kinds: dict[str, Any] = {
        "prompt": arrow.list_(arrow.struct([("role", text), ("content", text)])),
        "images": arrow.list_(arrow.struct([("bytes", arrow.binary()), ("path", text)])),
    }
    return arrow.schema([(name, kinds.get(name, text)) for name in row])


def _card(source: Source, plan: PreparePlan, counts: Counts, files: Sequence[Path]) -> CardTree:
    tokens = sorted(counts.tokens)
    card: CardTree = {
        "source": source.describe(),
        "plan": _plan_tree(plan),
        "files": {path.name: digest_of(path) for path in files},
        "rows": {"read": counts.read, "written": counts.written, "held_out": counts.held_out},
        "dropped": [
            {"reason": reason, "rows": number, "first": counts.rows[reason]}
            for reason, number in counts.dropped.most_common()
        ],
    }
    if absent := counts.absent.intersection(plan.keep):
        card["absent"] = sorted(absent)
    if tokens:
        card["tokens"] = {
            "min": tokens[0],
            "median": tokens[len(tokens) // 2],
            "max": tokens[-1],
        }
    return card


def _plan_tree(plan: PreparePlan) -> CardTree:
    return json.loads(json.dumps(asdict(plan), default=str))
