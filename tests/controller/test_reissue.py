"""Why a group was reissued stands in its record and in one line of the log."""

import asyncio
import json
from pathlib import Path

import pytest

from services.controller.router import DrainedError
from tests.controller.fakes import World, make_config, run
from tests.controller.resuming.test_resume import cut_ledger, records, run_world
from tests.controller.test_proofs import look_up
from trimaran.errors import InputError, InternalError
from trimaran.ledger.group_life import GroupLife
from trimaran.ledger.group_words import tell
from trimaran.ledger.records import (
    Committed,
    Consumed,
    Filtered,
    Generated,
    Issued,
    Reissue,
    Scored,
    Skipped,
    decode,
    encode,
)
from trimaran.ledger.scores import rewards_of, terms_of
from trimaran.types import (
    Completion,
    Faulted,
    Group,
    Message,
    Prompt,
    Proof,
    Score,
    ScoredGroup,
    Segment,
    VersionId,
)


def issued(folder: Path, number: int) -> list[Issued]:
    return [r for r in records(folder) if isinstance(r, Issued) and r.group == number]


def test_a_try_that_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path, make_config())
    failed: list[str] = []

    async def faults(number: int, attempt: int, prompt: Prompt, replica: str) -> None:
        if number == 5 and attempt == 1:
            failed.append(replica)
            raise InternalError("CUDA error")

    world.faults = faults
    run(world)
    first, second = issued(tmp_path, 5)
    cause = Reissue(f"{failed[0]}: CUDA error", failed[0])
    assert (first.attempt, first.reissue) == (1, None)
    assert (second.attempt, second.reissue) == (2, cause)
    made_by = [event[3] for event in world.events if event[:2] == ("generate", 5)]
    assert len(set(made_by)) == 2 and not world.lost
    assert reissue_lines(caplog) == [f"group 5 is reissued, attempt 2: {failed[0]}: CUDA error"]


def test_a_drained_replica_costs_its_group_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However often: a drain is no strike, and names no culprit."""
    world = World(tmp_path, make_config(run={"max_attempts": 1}))
    drained: list[str] = []

    async def faults(number: int, attempt: int, prompt: Prompt, replica: str) -> None:
        if number == 5 and attempt <= 4:
            drained.append(replica)
            raise DrainedError(f"{replica}: drained")

    world.faults = faults
    run(world)
    first, *others = issued(tmp_path, 5)
    assert first.reissue is None
    assert [o.attempt for o in others] == [2, 3, 4, 5]
    assert [o.reissue for o in others] == [Reissue(f"{r}: drained", r) for r in drained]
    assert 5 in world.trained_numbers()
    assert not world.lost and not world.weight_sync.reports


def test_a_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = make_config(run={"steps": 1, "groups_per_step": 2})
    (tmp_path / "whole").mkdir()
    run_world(tmp_path / "whole", config)
    rows = records(tmp_path / "whole")
    place, open_number = next(
        (i, r.group) for i, r in enumerate(rows, 1) if isinstance(r, Generated)
    )
    resumed = tmp_path / "resumed"
    cut_ledger(tmp_path / "whole", resumed, place)
    caplog.clear()
    run_world(resumed, config)
    first, again = issued(resumed, open_number)
    cause = "resumed: it was generated when the controller ended"
    assert first.reissue is None
    assert (again.attempt, again.reissue) == (2, Reissue(cause))
    assert f"group {open_number} is reissued, attempt 2: {cause}" in reissue_lines(caplog)


def test_the_life_of_a_group_is_shown(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(run={"steps": 2}))

    async def faults(number: int, attempt: int, prompt: Prompt, replica: str) -> None:
        if number == 5 and attempt == 1:
            raise InternalError("CUDA error")

    world.faults = faults
    run(world)
    life = asyncio.run(look_up(tmp_path, 5))
    assert [type(record) for record in life.records] == [Issued, Issued, Generated, Scored]
    assert life.step == 2
    tree = json.loads(json.dumps(life.tree()))
    assert tree["records"][1]["reissue"]["cause"].endswith(": CUDA error")
    rewards = [completion["reward"] for completion in tree["completions"]]
    assert rewards == tree["records"][3]["rewards"]
    with pytest.raises(InputError, match="knows no group 500"):
        asyncio.run(look_up(tmp_path, 500))


def test_the_life_of_a_group_in_plain_words() -> None:
    life = GroupLife(17)
    made = Proof(VersionId(0, 7), "rollout-0", "5f0c", 272, 34)
    other = Proof(VersionId(0, 7), "rollout-1", "5f0c", 272, 34)
    for record in (
        Issued(17, 1, "train.jsonl:3"),
        Issued(18, 1, "train.jsonl:4"),
        Issued(17, 2, "train.jsonl:3", Reissue("rollout-1: connection refused", "rollout-1")),
        Generated(17, 2, "9c41", (("rollout-0", "0.7"),)),
        Scored(17, 2, "77ab", (0.75, None)),
        Consumed(8, ((16, 1), (17, 2)), (made, other)),
        Committed(VersionId(0, 8), "02d7"),
        Committed(VersionId(0, 9), "33aa"),
    ):
        life.add(record)
    completion = Completion((5,), (-0.5,), "5", "stop", (Segment(0, 1, made.version, "rollout-0"),))
    prompt = Prompt("train.jsonl:3", (Message("user", "2 + 3"),), "", "5")
    verdicts_G = (
        Score(0.75, {"exact": 1.0, "brevity": -0.5}),
        Faulted("style: timeout", {"exact": 0.0}),
    )
    life.whole = ScoredGroup(Group(17, 2, prompt, (1,), (completion,) * 2), verdicts_G)
    assert list(tell(life)) == [
        "group 17, prompt train.jsonl:3",
        "attempt 1: issued",
        "attempt 2: issued again, because of rollout-1: connection refused"
        " (the attempt before was made by rollout-1)",
        "  generated by rollout-0 with version 0.7",
        "  scored: 2 completions",
        "    completion 1: reward 0.75 (exact 1, brevity -0.5)",
        "    completion 2: could not be scored: style: timeout (exact 0)",
        "trained in step 8, under these proofs of its tokens:",
        "  version 0.7 on rollout-0: all 272 blocks arrived right, 34 were read back from the"
        " engine, no fault",
        "the step made version 0.8, root 02d7",
    ]
    life.whole = None
    reported = "\n".join(tell(life))
    assert "completion 1: reward 0.75\n    completion 2: could not be scored\n" in reported
    assert (
        "(why some could not be scored is no longer kept" in reported
        and "unless run.keep_payloads is all" in reported
    )


def test_what_a_group_scored_by_term_outlives_its_payload() -> None:
    verdicts_G = (Score(0.5, {"exact": 1.0, "brevity": -0.5}), Score(1.0, {"exact": 1.0}))
    life = GroupLife(17)
    scored = Scored(17, 1, "77ab", rewards_of(verdicts_G), terms_of(verdicts_G))
    life.add(decode(json.loads(json.dumps(encode(scored)))))
    assert list(tell(life)) == [
        "group 17",
        "  scored: 2 completions",
        "    completion 1: reward 0.5 (exact 1, brevity -0.5)",
        "    completion 2: reward 1 (exact 1)",
        "it waits for its batch to be whole",
    ]
    assert life.tree()["completions"] == [
        {"reward": 0.5, "terms": {"exact": 1.0, "brevity": -0.5}},
        {"reward": 1.0, "terms": {"exact": 1.0}},
    ]
    faulted_G = (Score(1.0, {"exact": 1.0}), Faulted("style: timeout", {"exact": 0.0}))
    life.add(Scored(17, 2, "88cd", rewards_of(faulted_G), terms_of(faulted_G)))
    reported = "\n".join(tell(life))
    assert "completion 2: could not be scored (exact 0)\n" in reported
    assert "(why some could not be scored is no longer kept" in reported


def test_a_later_attempt_that_is_replaced_hides_what_an_earlier_one_scored() -> None:
    life = GroupLife(17)
    life.add(Scored(17, 1, "77ab", (0.5,)))
    life.add(Filtered(17, 2, "all its rewards are 1", (1.0,), (("exact", (1.0,)),)))
    reported = list(tell(life))
    assert reported[-1] == "    completion 1: reward 1 (exact 1)" and len(reported) == 4


def test_a_group_that_does_not_train_says_why() -> None:
    life = GroupLife(3)
    life.add(Issued(3, 1, "p"))
    assert list(tell(life))[-1] == "it is being generated, or waits to be issued again"
    life.add(Skipped(3, 1, "the prompt has 80 tokens; rollout.max_prompt_tokens is 72"))
    assert list(tell(life))[-1] == (
        "  skipped, so it never trains: the prompt has 80 tokens; rollout.max_prompt_tokens is 72"
    )


def reissue_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "is reissued" in r.getMessage()]
