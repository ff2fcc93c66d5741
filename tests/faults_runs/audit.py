"""Whether a run's ledger keeps its promises, judged from the bare records.

Nothing here comes from the controller: the chain, the lives of the groups and the order of the
steps are checked by rules that are written down here a second time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trimaran.types import ScoredGroup
from trimaran.wire.messages import parse_scored_group

Tree = Mapping[str, Any]
Read = Callable[[str], bytes]
"""From a payload's name to its bytes."""

BEFORE = {"generated": ("issued",), "scored": ("generated",), "consumed": ("scored",)} | {
    "filtered": ("generated", "scored"),
    "skipped": ("issued", "generated"),
}
"""What an attempt must be before it becomes this."""
ENDS = ("committed", "filtered", "skipped")


@dataclass(frozen=True, slots=True)
class Step:
    """One that was trained."""

    number: int
    batch: tuple[ScoredGroup, ...]
    root: str


@dataclass(slots=True)
class Audit:
    """Example: `audit(rows, "run-1", payloads.read, groups_per_step=2, max_lag=1).wrong == []`"""

    wrong: list[str] = field(default_factory=list)
    first_root: str = ""
    steps: list[Step] = field(default_factory=list)
    num_tokens: int = 0
    """Trained."""
    open_groups: list[int] = field(default_factory=list)
    """Issued and not ended."""


def audit(
    rows: Iterable[tuple[int, Tree]], run_id: str, read: Read, groups_per_step: int, max_lag: int
) -> Audit:
    """`rows`: sequence number and record, all of them."""
    return _Auditor(run_id, read, groups_per_step, max_lag).all(rows)


class _Auditor:
    def __init__(self, run_id: str, read: Read, groups_per_step: int, max_lag: int) -> None:
        self.found = Audit()
        self._read, self._size, self._max_lag = read, groups_per_step, max_lag
        self._head = hashlib.sha256(f"trimaran ledger of {run_id}".encode()).hexdigest()
        self._last = self._epoch = 0
        self._stages: dict[int, tuple[int, str]] = {}
        """Of each group: its newest attempt, and how far that is."""
        self._payloads: dict[int, str] = {}
        self._trained: set[str] = set()
        self._pending: tuple[int, tuple[ScoredGroup, ...]] | None = None
        self._roots: dict[tuple[int, int], str] = {}
        """By lineage and step."""

    def all(self, rows: Iterable[tuple[int, Tree]]) -> Audit:
        for sequence, tree in rows:
            self._follow(sequence, tree)
            kind = tree["kind"]
            if kind in ("generated", "filtered", "skipped"):
                self._move(tree["group"], tree["attempt"], kind)
            elif take := getattr(self, f"_on_{kind}", None):
                take(tree)
        self.found.open_groups = [n for n, (_, stage) in self._stages.items() if stage not in ENDS]
        missing = set(range(max(self._stages, default=-1) + 1)) - set(self._stages)
        if missing:
            self._say(f"prompts that were never issued: {sorted(missing)}")
        return self.found

    def _say(self, what: str) -> None:
        self.found.wrong.append(f"record {self._last}: {what}")

    def _follow(self, sequence: int, tree: Tree) -> None:
        content = {name: value for name, value in tree.items() if name != "hash"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        self._head = hashlib.sha256(f"{self._head}\n{text}".encode()).hexdigest()
        if sequence != self._last + 1:
            self._say(f"the next one is {sequence}")
        self._last = sequence
        if tree.get("hash") != self._head:
            self._say("its hash does not follow")
            self._head = tree.get("hash", "")

    def _on_opened(self, tree: Tree) -> None:
        if tree["epoch"] <= self._epoch:
            self._say(f"epoch {tree['epoch']} took over from {self._epoch}")
        self._epoch = tree["epoch"]

    def _on_began(self, tree: Tree) -> None:
        if self.found.first_root:
            self._say("the run began a second time")
        self.found.first_root = tree["root"]
        self._note_root(tree)

    def _on_issued(self, tree: Tree) -> None:
        number, attempt = tree["group"], tree["attempt"]
        before, stage = self._stages.get(number, (0, ""))
        if attempt <= before or stage in (*ENDS, "consumed"):
            self._say(
                f"group {number} is issued again as attempt {attempt} after {before} ({stage})"
            )
        if bool(before) != bool(tree["reissue"]):
            self._say(f"group {number}, attempt {attempt}: issued with reason {tree['reissue']}")
        self._stages[number] = attempt, "issued"

    def _move(self, number: int, attempt: int, to: str) -> None:
        stands = self._stages.get(number, (0, "nothing"))
        if stands[0] != attempt or stands[1] not in BEFORE[to]:
            self._say(f"group {number}, attempt {attempt} is {to} after {stands}")
        self._stages[number] = attempt, to

    def _on_scored(self, tree: Tree) -> None:
        self._move(tree["group"], tree["attempt"], "scored")
        self._payloads[tree["group"]] = tree["payload"]

    def _on_consumed(self, tree: Tree) -> None:
        step = len(self.found.steps) + 1
        if tree["step"] != step or self._pending:
            self._say(f"step {tree['step']} is chosen; {step} is the next")
        numbers = [number for number, _ in tree["groups"]]
        if len(numbers) != self._size or numbers != sorted(numbers):
            self._say(f"step {tree['step']} has the groups {numbers}")
        found = (self._take(number, attempt) for number, attempt in tree["groups"])
        batch = tuple(scored for scored in found if scored)
        self._check_tokens(tree, batch)
        self._pending = tree["step"], batch

    def _take(self, number: int, attempt: int) -> ScoredGroup | None:
        self._move(number, attempt, "consumed")
        name = self._payloads[number]
        digest = name.partition("@")[0]
        if digest in self._trained:
            self._say(f"payload {digest[:8]} of group {number} trains twice")
        self._trained.add(digest)
        try:
            data = self._read(name)
        except (FileNotFoundError, KeyError):
            self._say(f"the payload of group {number} is missing")
            return None
        if hashlib.sha256(data).hexdigest() != digest:
            self._say(f"the payload of group {number} is not {digest[:8]}")
        scored = parse_scored_group(data)
        if (scored.group.number, scored.group.attempt) != (number, attempt):
            self._say(f"the payload of group {number}, attempt {attempt} is another group's")
        return scored

    def _check_tokens(self, tree: Tree, batch: tuple[ScoredGroup, ...]) -> None:
        good = {
            (proof["version"]["lineage"], proof["version"]["step"], proof["replica"]): proof["root"]
            for proof in tree["proofs"]
            if not proof["fault"]
        }
        for scored in batch:
            for completion in scored.group.completions_G:
                self.found.num_tokens += len(completion.token_ids_T)
            for version, replica in scored.group.makers:
                root = good.get((version.lineage, version.step, replica))
                made = self._roots.get((version.lineage, version.step))
                if root is None or root != made:
                    self._say(f"step {tree['step']} trains tokens of {version}, {replica} unproven")
                if tree["step"] - 1 - version.step > self._max_lag:
                    self._say(f"step {tree['step']} trains tokens of {version}: too old")

    def _on_committed(self, tree: Tree) -> None:
        step = tree["version"]["step"]
        if self._pending is None or self._pending[0] != step:
            self._say(f"step {step} is committed without a batch")
            return
        batch = self._pending[1]
        self.found.steps.append(Step(step, batch, tree["root"]))
        for scored in batch:
            self._stages[scored.group.number] = scored.group.attempt, "committed"
        self._pending = None
        self._note_root(tree)

    def _on_branched(self, tree: Tree) -> None:
        self._say(f"a replay came to other weights at step {tree['step']}")

    def _note_root(self, tree: Tree) -> None:
        version = tree["version"]
        self._roots[version["lineage"], version["step"]] = tree["root"]
