"""The bound on what one client follows at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from trimaran.errors import LimitError


class Watchers:
    """Counts who watches.

    Example:
        with watchers.one_more(client.name):
            async for event in events:
                yield event
    """

    def __init__(self, most: int) -> None:
        """`most`: of one client, at a time."""
        self._most = most
        self._num: Counter[str] = Counter()

    @contextmanager
    def one_more(self, client: str) -> Generator[None]:
        """Raises LimitError."""
        if self._num[client] >= self._most:
            raise LimitError(
                f"watchers of {client}: {self._num[client]} at a time (of events, followed logs and"
                f" ledgers that are verified), and {self._most} is the most; end one, or watch"
                " several runs by ListRuns"
            )
        self._num[client] += 1
        try:
            yield
        finally:
            self._num[client] -= 1
            if not self._num[client]:
                del self._num[client]
