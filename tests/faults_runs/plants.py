"""Breakages of the real code, of which the oracle must find each: `--plant NAME`.

A plant is a change of a few words in the source of a module. It is made as the module is imported,
in the driver's first process, from which all others are born; no file is touched.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType


@dataclass(frozen=True, slots=True)
class Change:
    """In the source of `module`, `old`, which stands there once, becomes `new`."""

    module: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Plant:
    only: str
    """The faults that bring it to light, as `--only` has it."""
    changes: tuple[Change, ...]


PLANTS = {
    # A controller that was replaced is obeyed.
    "fencing": Plant(
        "stale",
        (Change("trimaran.wire.fence", "if caller.epoch < newest:", "if False:"),),
    ),
    # A batch trains before the ledger says so.
    "order": Plant(
        "kill controller",
        (
            Change(
                "services.controller.loop",
                "self.ledger.record(Consumed(batch.step, groups, tuple(proofs)))",
                "await self.trainer.train_batch("
                "batch, self.config.trainer.step_timeout, self.ledger.state.lineage, proofs)\n"
                "        await asyncio.sleep(3)\n"
                "        self.ledger.record(Consumed(batch.step, groups, tuple(proofs)))",
            ),
        ),
    ),
    # What an engine has loaded counts as right, whatever it is.
    "proof": Plant(
        "corrupt",
        (
            Change(
                "services.weight_sync.proving.windows",
                "if digest != expected[number]:",
                "if False:",
            ),
        ),
    ),
    # A record names a payload that is not on the disk yet.
    "payload": Plant(
        "kill controller",
        (
            Change(
                "trimaran.ledger.ledger",
                "await self._room.until_written(lambda files=files: self._payloads.write(files))",
                "asyncio.get_running_loop().call_later("
                "0.5, asyncio.ensure_future, self._payloads.write(files))",
            ),
        ),
    ),
    # A trainer that was started again goes on from its checkpoint as if no step had come after it.
    "replay": Plant(
        "kill trainer",
        (
            Change(
                "services.controller.resuming.resume",
                "for step in range(start + 1, state.step + 1):",
                "for step in ():",
            ),
            Change(
                "services.trainer.rank",
                "if step != self._step + 1 or under_way:",
                "if False:",
            ),
        ),
    ),
    # Nobody looks whether a process answers.
    "frozen": Plant(
        "frozen rollout",
        (Change("commands.launch.health", "if silence >= self._timeout and", "if False and"),),
    ),
    # The same step once more is trained once more.
    "twice": Plant(
        "Train",
        (
            Change(
                "services.trainer.rank",
                "if step == self._step and self._metrics:",
                "if False:",
            ),
            Change(
                "services.trainer.rank",
                "if step != self._step + 1 or under_way:",
                "if False:",
            ),
        ),
    ),
}


def install(name: str) -> None:
    """Before the modules are imported. Raises KeyError for a name that there is not."""
    changes = PLANTS[name].changes
    loaded = {change.module for change in changes} & sys.modules.keys()
    assert not loaded, f"{loaded}: imported too early to be changed"
    sys.meta_path.insert(0, _Finder(changes))


class _Finder(MetaPathFinder):
    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        changes = [change for change in self._changes if change.module == fullname]
        spec = PathFinder.find_spec(fullname, path) if changes else None
        if spec is None or spec.origin is None:
            return None
        spec.loader = _Loader(fullname, spec.origin, changes)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, changes: Sequence[Change]) -> None:
        super().__init__(fullname, path)
        self._changes = changes

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_source(fullname)
        assert source
        for change in self._changes:
            found = source.count(change.old)
            assert found == 1, f"{change.module} has {found} times: {change.old}"
            source = source.replace(change.old, change.new)
        return compile(source, self.path, "exec", dont_inherit=True)
