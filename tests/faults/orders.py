"""What the driver asks of a process when it gets to a certain place in the protocol.

An order is a file, `<folder>/<process>.order`: a place, how many times to pass
it first, and what to do there. The commonest one is "stop": the process sends
itself a SIGSTOP, so that the driver sees it stand exactly there and may kill it,
let it stay frozen, or do something to the others before it goes on.
"""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

STOP = "stop"


class Orders:
    """A process's own side. `reach` is called at each place, from any thread."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.order"
        self._lock = threading.Lock()

    def reach(self, place: str) -> str:
        """What is to be done here beside stopping, which this does itself; mostly nothing."""
        with self._lock:
            action = self._take(place)
        if action == STOP:
            # To this thread: it must not go one step further, as it might if another one took it.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            return ""
        return action

    def _take(self, place: str) -> str:
        try:
            order = json.loads(self._path.read_text())
        except FileNotFoundError:
            return ""
        if order["place"] != place:
            return ""
        if order["passes"] > 0:
            _write(self._path, order | {"passes": order["passes"] - 1})
            return ""
        self._path.unlink()
        return order["action"]


def give(folder: Path, name: str, place: str, action: str = STOP, passes: int = 0) -> None:
    """Takes the place of an order that was not carried out."""
    order = {"place": place, "action": action, "passes": passes}
    _write(folder / f"{name}.order", order)


def is_open(folder: Path, name: str) -> bool:
    return (folder / f"{name}.order").exists()


def withdraw(folder: Path, name: str) -> None:
    (folder / f"{name}.order").unlink(missing_ok=True)


def _write(path: Path, order: dict) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(order))
    part.rename(path)
