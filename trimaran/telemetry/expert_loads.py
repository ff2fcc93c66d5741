"""expert-loads.jsonl: how many tokens each expert got, a line a step, of models with experts.

    {"step":3,"layers":{"0":[412,388,…],"1":[…]}}

The file has one writer at a time. A model of 94 layers with 128 experts writes 87 kB a step.
"""

from __future__ import annotations

import json
import mmap
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimaran.errors import InputError
from trimaran.host.append_file import AppendFile
from trimaran.types import ExpertLoads

EXPERT_LOADS_NAME = "expert-loads.jsonl"
"""In the controller's run folder."""
HEAD = b'{"step":'
"""Of each line, behind which stand the step and a comma."""


@dataclass(frozen=True, slots=True)
class StepLoads:
    """Example: StepLoads(3, (ExpertLoads(0, (412, 388)),))"""

    step: int
    layers: tuple[ExpertLoads, ...]


class ExpertLoadsWriter:
    """Makes the file with its first line: there is none for a model without experts.

    Example:
        writer = ExpertLoadsWriter(run_folder)
        writer.write(1, answer.expert_loads)
        writer.close()
    """

    def __init__(self, run_folder: Path) -> None:
        self._path = run_folder / EXPERT_LOADS_NAME
        self._file: AppendFile | None = None
        self._newest = 0

    def write(self, step: int, layers: Sequence[ExpertLoads]) -> None:
        """Nothing without layers, nor of a step that has a line or comes before one that has: a run that was
        resumed trains steps again. On a full disk the line waits in memory."""
        if not layers:
            return
        if self._file is None:
            self._file = AppendFile(self._path)
            self._file.drop_torn_line()
            line = _newest_line(self._path)
            self._newest = _step_of(self._path, line) if line else 0
        if step > self._newest:
            row = {"step": step, "layers": {one.layer: one.tokens_E for one in layers}}
            self._file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
            self._newest = step

    def flush(self) -> None:
        """Raises OSError where there is no room yet for what has waited."""
        if self._file:
            self._file.flush()

    def close(self) -> None:
        if self._file:
            self._file.close()


def _newest_line(path: Path) -> bytes:
    """The last whole one; empty without any. Reads the file's end alone."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return b""
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            end = max(data.rfind(b"\n"), 0)
            return data[data.rfind(b"\n", 0, end) + 1 : end]


def read_loads(run_folder: Path, first: int, last: int | None) -> Iterator[StepLoads]:
    """Of steps `first` to `last`, both among them; to the end without a last one. A line that is being
    written is left out. Raises InputError where there is no such file, or a line is damaged."""
    for step, line in _lines(_existing(run_folder)):
        if first <= step and (last is None or step <= last):
            yield StepLoads(step, _parse(run_folder, step, line))


def read_newest(run_folder: Path) -> StepLoads | None:
    """As `read_loads`; None where the file has no whole line."""
    if not (line := _newest_line(path := _existing(run_folder))):
        return None
    step = _step_of(path, line)
    return StepLoads(step, _parse(run_folder, step, line))


def _existing(run_folder: Path) -> Path:
    path = run_folder / EXPERT_LOADS_NAME
    if not path.is_file():
        raise InputError(
            f"{path}: is not there; it is written with the first step of a model with experts"
        )
    return path


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """With their steps. Steps that are passed over need no parsing."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield _step_of(path, line), line


def _step_of(path: Path, line: bytes) -> int:
    number, comma, _ = line.removeprefix(HEAD).partition(b",")
    if not (line.startswith(HEAD) and comma and number.isdigit()):
        raise _damaged(path, line[:32])
    return int(number)


def _parse(run_folder: Path, step: int, line: bytes) -> tuple[ExpertLoads, ...]:
    try:
        layers = json.loads(line)["layers"].items()
        return tuple(ExpertLoads(int(layer), tuple(tokens)) for layer, tokens in layers)
    except (ValueError, LookupError, AttributeError, TypeError):
        raise _damaged(run_folder / EXPERT_LOADS_NAME, b"step %d" % step) from None


def _damaged(path: Path, where: bytes) -> InputError:
    return InputError(f"{path}: a line is damaged ({where!r}); remove it and ask again")


class Totals:
    """Of steps, one after the other.

    Example:
        totals = Totals()
        totals.add(StepLoads(3, (ExpertLoads(0, (412, 388)),)))
        totals.layers == {0: [412, 388]}
    """

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.layers: dict[int, list[int]] = {}
        """Tokens by layer and expert."""

    def add(self, one: StepLoads) -> None:
        self.steps.append(one.step)
        for loads in one.layers:
            known = self.layers.setdefault(loads.layer, [0] * len(loads.tokens_E))
            self.layers[loads.layer] = [a + b for a, b in zip(known, loads.tokens_E, strict=True)]


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """How uneven the load of a layer is. Example: LayerFigures.of([6, 2]).variation == 0.5"""

    tokens: int
    mean: float
    """Tokens of an expert."""
    most: int
    """The expert; of several, the first."""
    least: int
    variation: float
    """Standard deviation over experts, over the mean: 0 where all have the same."""

    @classmethod
    def of(cls, tokens_E: Sequence[int]) -> LayerFigures:
        """Of a layer through which a token has passed."""
        mean = statistics.fmean(tokens_E)
        experts = range(len(tokens_E))
        return cls(
            tokens=sum(tokens_E),
            mean=mean,
            most=max(experts, key=tokens_E.__getitem__),
            least=min(experts, key=tokens_E.__getitem__),
            variation=statistics.pstdev(tokens_E) / mean,
        )
