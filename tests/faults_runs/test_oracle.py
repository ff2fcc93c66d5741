"""The oracle finds each way in which a run may have broken its promises."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.faults import house
from tests.faults_runs.audit import Audit, audit
from tests.faults_runs.replay import Alone, replay
from tests.faults_runs.standins import MODEL
from tests.faults_runs.told import Harm, find_untrue
from trimaran.config import RunConfig, parse_config
from trimaran.run.runs import EventKind, Run, RunEvent, RunState
from trimaran.types import (
    Completion,
    Group,
    Message,
    Prompt,
    Score,
    ScoredGroup,
    Segment,
    VersionId,
)
from trimaran.wire.messages import serialize_scored_group

RUN = "run-1"
NUM_STEPS, PER_STEP = 3, 2
PROMPT = Prompt("train.jsonl:1", (Message("user", "1 + 2?"),), "addition", "3")


@dataclass
class Written:
    """A ledger that a run without faults wrote, but for what `harm` made of its records."""

    config: RunConfig
    trees: list[dict[str, Any]] = field(default_factory=list)
    payloads: dict[str, bytes] = field(default_factory=dict)

    def audit(self) -> Audit:
        head = hashlib.sha256(f"trimaran ledger of {RUN}".encode()).hexdigest()
        rows = []
        for sequence, tree in enumerate(self.trees, start=1):
            text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
            head = hashlib.sha256(f"{head}\n{text}".encode()).hexdigest()
            rows.append((sequence, {**tree, "hash": head}))
        return audit(rows, RUN, self.payloads.__getitem__, PER_STEP, max_lag=0)

    def wrong(self) -> list[str]:
        found = self.audit()
        return [*found.wrong, *replay(self.config, found)]

    def at(self, kind: str, which: int = 0) -> int:
        return [place for place, tree in enumerate(self.trees) if tree["kind"] == kind][which]

    def keep(self, scored: ScoredGroup) -> str:
        data = serialize_scored_group(scored)
        digest = hashlib.sha256(data).hexdigest()
        self.payloads[digest] = data
        return digest


@pytest.fixture
def written(tmp_path) -> Written:
    model = house.write_model(tmp_path / "model", MODEL)
    config = parse_config(
        {
            "model": {"path": str(model)},
            "data": {"train": "train.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
        }
    )
    written, alone = Written(config), Alone(config)
    add = written.trees.append
    add({"kind": "opened", "epoch": 1})
    add({"kind": "began", "version": {"lineage": 0, "step": 0}, "root": alone.root()})
    for step in range(1, NUM_STEPS + 1):
        token, made = alone.checksum(), VersionId(0, step - 1)
        numbers = range(PER_STEP * (step - 1), PER_STEP * step)
        batch = tuple(_scored(number, token, made) for number in numbers)
        for scored in batch:
            number = scored.group.number
            add({"kind": "issued", "group": number, "attempt": 1, "prompt": "p", "reissue": None})
            add({"kind": "generated", "group": number, "attempt": 1, "digest": "d"})
            payload = written.keep(scored)
            add({"kind": "scored", "group": number, "attempt": 1, "payload": payload})
        version = {"lineage": 0, "step": step - 1}
        proof = {"version": version, "replica": "rollout-0", "root": alone.root(), "fault": ""}
        groups = [[number, 1] for number in numbers]
        add({"kind": "consumed", "step": step, "groups": groups, "proofs": [proof]})
        alone.train(batch)
        version = {"lineage": 0, "step": step}
        add({"kind": "committed", "version": version, "root": alone.root(), "nonfinite": ""})
    return written


def _scored(number: int, token: int, version: VersionId, attempt: int = 1) -> ScoredGroup:
    segments = (Segment(0, 3, version, "rollout-0"),)
    completion = Completion((token,) * 3, (0.0,) * 3, "text", "length", segments)
    return ScoredGroup(Group(number, attempt, PROMPT, (1,), (completion,) * 2), (Score(1.0),) * 2)


def test_a_run_without_faults_is_not_wrong(written):
    found = written.audit()
    assert written.wrong() == []
    assert found.open_groups == [] and found.ends == {"committed": NUM_STEPS * PER_STEP}
    assert found.num_tokens == NUM_STEPS * PER_STEP * 2 * 3
    assert [step.number for step in found.steps] == [1, 2, 3]


def test_a_group_may_be_reissued_before_it_is_consumed(written):
    place = written.at("issued", 2)
    reissue = {"cause": "rollout-0: gone", "replica": "rollout-0"}
    for tree in written.trees[place + 1 : place + 3]:
        tree["attempt"] = 2
    written.trees.insert(place + 1, {**written.trees[place], "attempt": 2, "reissue": reissue})
    scored = written.at("scored", 2)
    token, version = Alone(written.config), VersionId(0, 1)
    token.train(written.audit().steps[0].batch)
    again = _scored(2, token.checksum(), version, attempt=2)
    written.trees[scored]["payload"] = written.keep(again)
    written.trees[written.at("consumed", 1)]["groups"][0] = [2, 2]
    found = written.audit()
    assert found.wrong == [] and found.num_reissued == 1


def swap(written: Written) -> None:
    place = written.at("consumed")
    written.trees[place : place + 2] = reversed(written.trees[place : place + 2])


def train_twice(written: Written) -> None:
    written.trees[written.at("consumed", 1)]["groups"][0] = [0, 1]


def train_a_copy(written: Written) -> None:
    first = written.trees[written.at("scored", 0)]["payload"]
    written.trees[written.at("scored", 2)]["payload"] = first


def issue_an_ended_group(written: Written) -> None:
    reissue = {"cause": "resumed", "replica": ""}
    written.trees.append(
        {"kind": "issued", "group": 0, "attempt": 2, "prompt": "p", "reissue": reissue}
    )


def end_twice(written: Written) -> None:
    written.trees.append({"kind": "skipped", "group": 0, "attempt": 1, "reason": "late"})


def drop_the_proof(written: Written) -> None:
    written.trees[written.at("consumed", 1)]["proofs"] = []


def prove_other_weights(written: Written) -> None:
    written.trees[written.at("consumed", 1)]["proofs"][0]["root"] = "0" * 32


def find_a_fault(written: Written) -> None:
    written.trees[written.at("consumed", 1)]["proofs"][0]["fault"] = "block 3"


def use_old_tokens(written: Written) -> None:
    [token] = set(written.audit().steps[0].batch[0].group.completions_G[0].token_ids_T)
    old = _scored(2, token, VersionId(0, 0))
    written.trees[written.at("scored", 2)]["payload"] = written.keep(old)


def forget_a_prompt(written: Written) -> None:
    for kind in ("issued", "generated", "scored"):
        written.trees[written.at(kind, 5)]["group"] = 6
    written.trees[written.at("consumed", 2)]["groups"][1] = [6, 1]


def go_back_an_epoch(written: Written) -> None:
    written.trees.append({"kind": "opened", "epoch": 1})


def commit_another_root(written: Written) -> None:
    written.trees[written.at("committed", 2)]["root"] = "0" * 32


def skip_a_step(written: Written) -> None:
    for tree in written.trees[written.at("consumed", 2) :]:
        if tree["kind"] == "consumed":
            tree["step"] = 4
        else:
            tree["version"]["step"] = 4


def branch(written: Written) -> None:
    written.trees.append({"kind": "branched", "step": 3, "lineage": 1})


def lie_about_tokens(written: Written) -> None:
    place = written.at("scored", 2)
    payload = written.trees[place]["payload"]
    written.trees[place]["payload"] = written.keep(_scored(2, 12345, VersionId(0, 1)))
    assert payload != written.trees[place]["payload"]


HARMS = (
    swap,
    train_twice,
    train_a_copy,
    issue_an_ended_group,
    end_twice,
    drop_the_proof,
    prove_other_weights,
    find_a_fault,
    use_old_tokens,
    forget_a_prompt,
    go_back_an_epoch,
    commit_another_root,
    skip_a_step,
    branch,
    lie_about_tokens,
)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_broken_promise_is_found(written, harm: Callable[[Written], None]):
    harm(written)
    assert written.wrong()


def test_the_replay_tells_the_order_of_batches(written):
    found = written.audit()
    [first, second, third] = found.steps
    found.steps = [replace(first, batch=second.batch), replace(second, batch=first.batch), third]
    assert any(what.startswith("replay: step 1") for what in replay(written.config, found))


def told(kind: EventKind, time: float, state: RunState, starts: int = 1) -> RunEvent:
    text = "the launcher died; the run starts it again in 2 s" if kind is EventKind.PROCESS else ""
    return RunEvent(int(time), kind, Run(RUN, state, 1, 2, starts=starts), {}, text, time)


def death(time: float, starts: int) -> RunEvent:
    return told(EventKind.PROCESS, time, RunState.STARTING, starts)


def end(time: float, state: RunState = RunState.SUCCEEDED) -> RunEvent:
    return told(EventKind.FINISHED, time, state)


def queued(time: float) -> RunEvent:
    return told(EventKind.STATE, time, RunState.QUEUED)


def test_what_watchers_were_told_is_judged_by_the_faults():
    kill, resume = Harm("kill launcher", 9), Harm("pause and resume", 20)
    failed = end(2, RunState.FAILED)
    assert find_untrue([queued(1), failed, queued(3), end(4)], [], starts=1) == []
    assert (
        find_untrue([death(10, 1), death(14, 1)], [kill], starts=2) == []
    )  # told twice, one death
    assert len(find_untrue([queued(1), end(2), end(3), end(4)], [], starts=1)) == 2
    for harms in ([], [Harm("kill rollout", 9), resume], [Harm("kill launcher", 11)]):
        [found] = find_untrue([death(10, 1)], harms, starts=2)
        assert found.startswith("launcher 1 ")
    [found] = find_untrue([death(10, 1), death(10.3, 2)], [kill], starts=3)
    assert found.startswith("launcher 2 ")  # a fault explains one death
    [found] = find_untrue([death(10, 1)], [kill, resume], starts=4)
    assert found.startswith("4 starts")
