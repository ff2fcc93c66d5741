"""Numbers by step in bounded memory: a bucket is of one step, then of 2, 4, 8 and so on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

NOT_METRICS = frozenset(("kind", "step", "time", "nonfinite"))
STEP, SECONDS = "step", "seconds"
"""Columns of every table. The seconds are since the table's first row."""
FIRST_ROWS, FIRST_KEYS = 64, 32


@dataclass(frozen=True, slots=True)
class Cut:
    """Some columns of a table: a row for each `stride` steps. A number that there is not is NaN.

    Example: Cut({"step": ...}, {"step": ...}, {"step": ...})
    """

    means: Mapping[str, Floats]
    lows: Mapping[str, Floats]
    highs: Mapping[str, Floats]


class Table:
    """The rows of one kind. A step that is trained again replaces the former, and what its bucket held.

    Example:
        table = Table(most=4096)
        table.add([{"kind": "step", "step": 1, "time": 1.7e9, "trainer/loss": 0.5}])
        table.cut(["trainer/loss"], 0, 1000, points=500).means["trainer/loss"]
    """

    def __init__(self, most: int) -> None:
        """`most`: buckets in memory, an even number."""
        self._most = most
        self.stride = 1
        self.times_back = 0
        """How often a step came that was not behind the one before."""
        self.newest_step = -1
        self._last_step = -1
        self._began = 0.0
        self._columns: dict[str, int] = {STEP: 0, SECONDS: 1}
        shape = (min(FIRST_ROWS, most), FIRST_KEYS)
        self._counts, self._sums = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._lows, self._highs = _filled(shape, np.inf), _filled(shape, -np.inf)
        self._passes = np.zeros(shape[0], np.int32)
        """`times_back` when a bucket was written."""

    @property
    def keys(self) -> list[str]:
        return [key for key in self._columns if key not in (STEP, SECONDS)]

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """In the order in which they were written."""
        for ascending in _ascending(rows, self._last_step):
            if ascending[0]["step"] <= self._last_step:
                self.times_back += 1
            elif self._last_step < 0:
                self._began = ascending[0]["time"]
            self._last_step = ascending[-1]["step"]
            self.newest_step = max(self.newest_step, self._last_step)
            self._add(ascending)

    def find_stride(self, first: int, last: int, points: int) -> int:
        """How many steps a row must stand for, so that `first` to `last` have no more than `points`."""
        stride = self.stride
        while min(last, self.newest_step) // stride - first // stride >= points:
            stride *= 2
        return stride

    def cut(self, keys: Sequence[str], first: int, last: int, stride: int) -> Cut:
        """Steps `first` to `last`, with the steps around them that share a row; of the keys those that the
        table has. `stride`: as `find_stride` says."""
        wanted = [STEP, SECONDS, *(key for key in keys if key in self._columns)]
        columns = [self._columns[key] for key in wanted]
        size = stride // self.stride
        end = min(last, self.newest_step) // stride + 1
        rows = slice(first // stride * size, max(end, 0) * size)

        def fold(values: Floats, how: np.ufunc) -> Floats:
            chosen = values[rows][:, columns]
            starts = np.arange(0, len(chosen), size)
            return how.reduceat(chosen, starts, axis=0) if len(chosen) else chosen

        counts = fold(self._counts, np.add)
        is_used, is_known = counts[:, 0] > 0, counts > 0
        means = fold(self._sums, np.add) / np.where(is_known, counts, np.nan)
        lows = np.where(is_known, fold(self._lows, np.minimum), np.nan)
        highs = np.where(is_known, fold(self._highs, np.maximum), np.nan)
        by_key = (
            dict(zip(wanted, found[is_used].T, strict=True)) for found in (means, lows, highs)
        )
        return Cut(*by_key)

    def _add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        steps = np.array([row["step"] for row in rows])
        while steps[-1] // self.stride >= self._most:
            self._halve()
        self._make_room(int(steps[-1]) // self.stride + 1, rows)
        buckets, starts = np.unique(steps // self.stride, return_index=True)
        self._clear(buckets[self._passes[buckets] != self.times_back])
        self._passes[buckets] = self.times_back
        values = np.full((len(rows), self._counts.shape[1]), np.nan, np.float32)
        values[:, 0] = steps
        values[:, 1] = [row["time"] - self._began for row in rows]
        for key in self.keys:
            values[:, self._columns[key]] = [row.get(key) for row in rows]
        is_known = np.isfinite(values)
        self._counts[buckets] += np.add.reduceat(is_known, starts, axis=0, dtype=np.float32)
        self._sums[buckets] += np.add.reduceat(np.where(is_known, values, 0), starts, axis=0)
        lows = np.minimum.reduceat(np.where(is_known, values, np.inf), starts, axis=0)
        self._lows[buckets] = np.minimum(self._lows[buckets], lows)
        highs = np.maximum.reduceat(np.where(is_known, values, -np.inf), starts, axis=0)
        self._highs[buckets] = np.maximum(self._highs[buckets], highs)

    def _clear(self, buckets: NDArray[np.int_]) -> None:
        self._counts[buckets] = self._sums[buckets] = 0
        self._lows[buckets], self._highs[buckets] = np.inf, -np.inf

    def _make_room(self, num_buckets: int, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            for key in row.keys() - self._columns.keys() - NOT_METRICS:
                self._columns[key] = len(self._columns)
        height, width = self._counts.shape
        while height < num_buckets:
            height *= 2
        while width < len(self._columns):
            width *= 2
        if (height, width) == self._counts.shape:
            return
        self._resize(min(height, self._most), width)

    def _resize(self, height: int, width: int) -> None:
        more = ((0, height - len(self._counts)), (0, width - self._counts.shape[1]))
        self._counts, self._sums = np.pad(self._counts, more), np.pad(self._sums, more)
        self._lows = np.pad(self._lows, more, constant_values=np.inf)
        self._highs = np.pad(self._highs, more, constant_values=-np.inf)
        self._passes = np.pad(self._passes, more[0])

    def _halve(self) -> None:
        """Two buckets become one, and the table has room again."""
        self._resize(self._most, self._counts.shape[1])
        self.stride *= 2
        self._counts = self._counts.reshape(-1, 2, self._counts.shape[1]).sum(1)
        self._sums = self._sums.reshape(-1, 2, self._sums.shape[1]).sum(1)
        self._lows = self._lows.reshape(-1, 2, self._lows.shape[1]).min(1)
        self._highs = self._highs.reshape(-1, 2, self._highs.shape[1]).max(1)
        self._passes = self._passes.reshape(-1, 2).max(1)


def _filled(shape: tuple[int, int], value: float) -> Floats:
    return np.full(shape, value, np.float32)


def _ascending(
    rows: Sequence[Mapping[str, Any]], last: int
) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Parts of the rows, in each of which the steps grow."""
    start = 0
    for index, row in enumerate(rows):
        if row["step"] <= last:
            if index > start:
                yield rows[start:index]
            start = index
        last = row["step"]
    if start < len(rows):
        yield rows[start:]
