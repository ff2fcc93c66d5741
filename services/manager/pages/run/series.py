"""The numbers of runs in memory, as far as they were asked for, and their rows for a browser."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any

from services.manager.pages.run.charts import Chart, find_charts, other_charts
from services.manager.pages.run.thinning import SECONDS, STEP, Floats, Table
from services.manager.run_data.metric_rows import RowCursor, RowPage
from trimaran.run.runs import EventKind, Run

MOST_RUNS = 10
"""In memory, some 20 MB each at the most."""
MOST_STEPS, MOST_VALIDATIONS = 8192, 1024
"""Rows of a run."""
POINTS = 1000
"""Of a line, in one answer."""
READ_SECONDS = 0.5
"""For which one request reads on."""

Read = Callable[[RowCursor], Awaitable[RowPage]]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a browser asks for.

    Example: Wish(charts=("reward", "trainer/loss"), first=100, last=200)
    """

    charts: Sequence[str] = ()
    """Names; empty: those that every run has."""
    first: int = 0
    last: int = 2**31 - 1
    has_bands: bool = True
    """With spreads, or what lies in a row of several steps."""
    since: str = ""
    """Of the answer before, to the same wish. The rows that it has are then left out."""


class RunSeries:
    """One run's numbers, which each request brings up to date.

    Example:
        series = RunSeries()
        answer = await series.answer(lambda after: runs.metric_rows(client, "run", after), Wish())
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._cursor = RowCursor()
        self._begin()
        self._lives = 0
        """How often it was begun."""

    async def answer(self, read: Read, wish: Wish) -> dict[str, Any]:
        """`share`: how much is read; the rest of the answer comes once that is all."""
        async with self._lock:
            share = await self._read_on(read)
            if share < 1:
                return {"share": share}
            return await asyncio.to_thread(self._show, wish)

    async def _read_on(self, read: Read) -> float:
        """To the end, or for READ_SECONDS."""
        deadline = time.monotonic() + READ_SECONDS
        while True:
            page = await read(self._cursor)
            await asyncio.to_thread(self._take, page)
            if page.share >= 1 or time.monotonic() > deadline:
                return page.share

    def _take(self, page: RowPage) -> None:
        if page.is_first:
            self._begin()
            self._lives += 1
        for kind, table in self._tables.items():
            table.add([row for row in page.rows if row["kind"] == kind])
        self._cursor = page.cursor

    def _begin(self) -> None:
        self._tables = {
            EventKind.STEP.value: Table(MOST_STEPS),
            EventKind.VALIDATION.value: Table(MOST_VALIDATIONS),
        }

    def _show(self, wish: Wish) -> dict[str, Any]:
        known = [key for table in self._tables.values() for key in table.keys]
        charts = [(chart, chart.lines(known)) for chart in find_charts(wish.charts)]
        keys = {line.key for _, lines in charts for line in lines}
        ranged: set[str] = set()
        if wish.has_bands:
            ranged = {lines[0].key for chart, lines in charts if lines and not chart.spread}
            keys |= {key for chart, _ in charts for key in chart.spread}
        places = wish.since.split()
        shown = [
            _show_table(table, keys, ranged, wish, f"{self._lives}.{kind}", places)
            for kind, table in self._tables.items()
        ]
        answer: dict[str, Any] = {
            "share": 1,
            "since": " ".join(place for _, place in shown),
            "charts": [
                _chart_tree(chart) | {"lines": [asdict(line) for line in lines]}
                for chart, lines in charts
                if lines
            ],
            "tables": [table for table, _ in shown],
        }
        if not wish.since:
            all_charts = [chart for chart in find_charts(()) if chart.lines(known)]
            answer["choice"] = [_chart_tree(c) for c in (*all_charts, *other_charts(known))]
        return answer


class SeriesShelf:
    """Those of the runs that were asked for last.

    Example: SeriesShelf().of(run)
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, RunSeries]] = OrderedDict()

    def of(self, run: Run) -> RunSeries:
        """Empty where the run is another one of the same id."""
        made_at, series = self._kept.pop(run.run_id, (run.created_at, RunSeries()))
        if made_at != run.created_at:
            series = RunSeries()
        self._kept[run.run_id] = run.created_at, series
        while len(self._kept) > MOST_RUNS:
            self._kept.popitem(last=False)
        return series


def _show_table(
    table: Table,
    keys: Set[str],
    ranged: Set[str],
    wish: Wish,
    name: str,
    places: Sequence[str],
) -> tuple[dict[str, Any], str]:
    """The rows, and how far the browser has them then. `ranged`: keys of which the least and the greatest
    values are shown, where a row is of several steps.

    A place is name, number of times back, stride, and the step with which the last row begins, which
    may grow: it goes out again.
    """
    stride = table.find_stride(wish.first, wish.last, POINTS)
    mark = f"{name}.{table.times_back}.{stride}."
    known = next((step for place in places if (step := place.removeprefix(mark)).isdecimal()), None)
    begin = max(wish.first, int(known)) if known else wish.first
    cut = table.cut(sorted(keys), begin, wish.last, stride)
    end = min(wish.last, max(table.newest_step, 0)) // stride * stride
    with_range = ranged if stride > 1 else frozenset[str]()
    tree = {
        "stride": stride,
        "begin": begin // stride * stride if known else -1,
        "step": _round(cut.means[STEP], 8),
        "seconds": _round(cut.means[SECONDS], 8),
        "means": _columns(cut.means, keys),
        "lows": _columns(cut.lows, with_range),
        "highs": _columns(cut.highs, with_range),
    }
    return tree, f"{mark}{end}"


def _columns(values: Mapping[str, Floats], keys: Set[str]) -> dict[str, list[float | None]]:
    return {key: _round(values[key], 5) for key in sorted(keys) if key in values}


def _round(values: Floats, digits: int) -> list[float | None]:
    """To so many significant digits, which makes the answer short."""
    form = f"{{:.{digits}g}}".format
    return [None if value != value else float(form(value)) for value in values.tolist()]


def _chart_tree(chart: Chart) -> dict[str, Any]:
    return {
        "name": chart.name,
        "title": chart.title,
        "unit": chart.unit,
        "about": chart.about,
        "spread": chart.spread,
    }
