"""Groups of episodes, as the loop gets them from fake replicas and fake environments."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.controller import fakes
from tests.controller.fakes import IMAGE, World, make_config
from trimaran.errors import DeadlineError, InternalError, UnavailableError
from trimaran.ledger.records import Consumed, Retried
from trimaran.types import (
    Completion,
    Faulted,
    Message,
    Opening,
    Prompt,
    Reply,
    Score,
    ScoredGroup,
    Usage,
    images_in,
    sampled_spans,
)


def make_world(folder: Path, **environment: Any) -> World:
    section = {"factory": "guess.py:Guess", "max_turns": 5, **environment}
    model = {"path": str(folder)}
    return World(folder, make_config(environment=section, reward={"rules": {}}, model=model))


def run(world: World) -> list[ScoredGroup]:
    """All groups that were trained."""
    fakes.run(world)
    return [scored for batch in world.trainer.batches for scored in batch.groups]


def make_vision_world(folder: Path, **environment: Any) -> World:
    (folder / "config.json").write_text(
        json.dumps({"model_type": "qwen3_vl", "image_token_id": IMAGE})
    )
    return make_world(folder, **environment)


def row_of(number: int, *images: bytes) -> Prompt:
    text = f"{number}: left <image> right <image>?" if images else f"{number}?"
    return Prompt(f"p:{number}", (Message("user", text, images),), "add", "")


def turns_of(world: World) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What each turn was asked with, and what it sampled."""
    return [event[3:] for event in world.events if event[0] == "turn"]


def test_an_episode_is_what_was_given_and_sampled_and_nothing_else(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    groups = run(world)
    asked = turns_of(world)
    for scored in groups:
        prompt = tuple(scored.group.prompt_token_ids)
        assert len(prompt) == 2
        for completion in scored.group.completions_G:
            ids = prompt + tuple(completion.token_ids_T)
            assert [turn.num_sampled for turn in completion.turns] == [3, 3, 3]
            assert [turn.num_given for turn in completion.turns] == [2, 2, 0]
            for start, end in sampled_spans(completion.segments):
                assert (ids[: start + 2], ids[start + 2 : end + 2]) in asked
            assert sampled_spans(completion.segments) == ((0, 3), (5, 8), (10, 13))
            assert completion.is_covered
            assert completion.reward == completion.turns[-1].reward
    assert {type(v) for g in groups for v in g.verdicts_G} == {Score}
    assert not world.reward.calls, "there are no rules"


def test_a_rewritten_history_becomes_branches_behind_what_all_begin_with(tmp_path: Path) -> None:
    world = make_world(tmp_path)

    def rewrite(name: str, turn: int, message: Message) -> Reply | None:
        if turn == 2:
            return Reply((Message("system", "again"), Message("user", "short")), sequence=1)
        return None

    world.environments[0].reply = rewrite
    for scored in run(world):
        assert not scored.group.prompt_token_ids[1:], "only the first token is alike"
        for completion in scored.group.completions_G:
            (branch,) = completion.branches
            assert sampled_spans(completion.segments) == ((3, 6),)
            assert sampled_spans(branch.segments) == ((1, 4), (6, 9))
            assert [turn.sequence for turn in completion.turns] == [1, 1, 0]
            assert completion.is_covered and completion.num_sampled == 9


def test_an_environment_may_shorten_the_next_turn_and_hears_how_long_each_was(
    tmp_path: Path,
) -> None:
    world = make_world(tmp_path)
    world.environments[0].reply = lambda name, turn, message: (
        Reply((Message("user", "be short"),), max_tokens=2) if turn == 1 else None
    )
    for scored in run(world):
        for completion in scored.group.completions_G:
            assert [turn.num_sampled for turn in completion.turns] == [3, 2, 3]
    assert world.environments[0].usages == {1: {Usage(2, 3)}, 2: {Usage(7, 2)}, 3: {Usage(11, 3)}}


def test_history_by_template_goes_on_where_the_rendering_keeps_the_prefix(tmp_path: Path) -> None:
    """The fake replica renders messages as two tokens each, so the policy's own turn is another one than it sampled."""
    world = make_world(tmp_path, history="template")
    for scored in run(world):
        for completion in scored.group.completions_G:
            assert len(completion.branches) == 2
            assert [turn.sequence for turn in completion.turns] == [1, 2, 0]


@pytest.mark.parametrize("history", ["exact", "template"])
def test_the_rows_images_go_with_every_turn_and_are_in_what_all_begin_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: str
) -> None:
    rows = {f"p:{n}": row_of(n, b"%d" % n, b"right of %d" % n) for n in range(16)}
    monkeypatch.setattr(fakes, "PROMPTS", [*rows.values()])
    world = make_vision_world(tmp_path, history=history)
    seen: list[tuple[bytes, ...]] = []

    def see(replica: str, images: tuple[bytes, ...]) -> str:
        seen.append(images)
        return " ".join(map(bytes.decode, images))

    world.see = see
    groups = run(world)
    for scored in groups:
        group = scored.group
        assert group.prompt == rows[group.prompt.prompt_id]
        assert group.image_digest == see("", images_in(group.prompt.messages))
        assert list(group.prompt_token_ids).count(IMAGE) == 2
        assert all(len(one.turns) == 3 for one in group.completions_G)
    assert len(seen) >= len(groups) * (2 * 3 + 1) and all(len(images) == 2 for images in seen)


def opens_with(*texts: str) -> Callable[[World], None]:
    def arrange(world: World) -> None:
        world.environments[0].opening = Opening(tuple(Message("user", text) for text in texts))

    return arrange


def test_an_environment_may_put_the_rows_images_into_messages_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes, "PROMPTS", [row_of(0, b"l", b"r")])
    world = make_vision_world(tmp_path)
    opens_with("first <image>", "and <image>.")(world)
    for scored in run(world):
        assert [one.images for one in scored.group.prompt.messages] == [(b"l",), (b"r",)]
        assert list(scored.group.prompt_token_ids).count(IMAGE) == 2


def begins_another_sequence(world: World) -> None:
    world.environments[0].reply = lambda name, turn, message: (
        Reply((Message("user", "in short"),), sequence=1) if turn == 2 else None
    )


def sees_other_pixels_each_time(world: World) -> None:
    counted = itertools.count()
    world.see = lambda replica, images: str(next(counted))


@pytest.mark.parametrize(
    ("arrange", "reason"),
    [
        (opens_with("Guess."), "stands 0 times, and the row has 2 images; keep <image>"),
        (begins_another_sequence, "not all sequences of its episodes begin with its images"),
        (sees_other_pixels_each_time, "two replicas make different pixels of its images"),
    ],
)
def test_a_prompt_whose_images_cannot_be_learned_from_is_skipped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arrange: Callable[[World], None],
    reason: str,
) -> None:
    rows = [row_of(n, *((b"l", b"r") if n == 5 else ())) for n in range(16)]
    monkeypatch.setattr(fakes, "PROMPTS", rows)
    world = make_vision_world(tmp_path)
    arrange(world)
    trained = {scored.group.prompt.prompt_id for scored in run(world)}
    assert trained == {f"p:{n}" for n in range(16) if n != 5}
    said = {event[1]: event[2] for event in world.events if event[0] == "skipped"}
    assert said.keys() == {"p:5"} and reason in said["p:5"]


def test_an_image_in_a_reply_is_a_fault(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    world.environments[0].reply = lambda name, turn, message: (
        Reply((Message("user", "<image>", (b"png",)),))
        if name.split(".")[2] == "0" and turn == 1
        else None
    )
    for scored in run(world):
        first, second = scored.verdicts_G
        assert isinstance(first, Faulted) and "messages of episodes are texts" in first.fault
        assert isinstance(second, Score)


def test_an_episode_ends_after_so_many_turns(tmp_path: Path) -> None:
    world = make_world(tmp_path, max_turns=2)
    reasons = {c.finish_reason for g in run(world) for c in g.group.completions_G}
    assert reasons == {"turns"}


def test_an_environment_that_fails_is_opened_again_and_the_ledger_says_why(tmp_path: Path) -> None:
    world = make_world(tmp_path, replicas=2)
    broken = set[str]()

    async def fail_once(name: str, turn: int) -> None:
        number, _, index, number_of_try = name.split(".")
        if turn == 2 and index == "1" and number_of_try == "1":
            broken.add(number)
            raise InternalError("the environment died (SIGKILL)")

    for environment in world.environments:
        environment.faults = fail_once
    groups = run(world)
    assert broken
    assert all(not c.fault and len(c.turns) == 3 for g in groups for c in g.group.completions_G)
    retried = [record for record in world.recorded if isinstance(record, Retried)]
    assert {str(record.group) for record in retried} == broken
    assert all(
        record.cause.endswith("turn 2: the environment died (SIGKILL)") for record in retried
    )
    assert not any(environment.open_names for environment in world.environments)


def test_an_environment_that_always_fails_faults_the_episode_and_not_its_group(
    tmp_path: Path,
) -> None:
    world = make_world(tmp_path)

    async def fail(name: str, turn: int) -> None:
        if name.split(".")[2] == "0" and turn:
            raise DeadlineError("no answer within 30 s")

    world.environments[0].faults = fail
    for scored in run(world):
        first, second = scored.verdicts_G
        assert isinstance(first, Faulted) and "no answer within 30 s" in first.fault
        assert first.faulted_terms == world.config.reward_terms != ()
        assert isinstance(second, Score)
        assert not scored.group.completions_G[0].token_ids_T


def test_a_service_that_is_away_is_waited_for(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    away = iter(range(3))

    async def be_away(name: str, turn: int) -> None:
        if turn == 0 and next(away, None) is not None:
            raise UnavailableError("connection refused")

    world.environments[0].faults = be_away
    assert len(run(world)) == 24
    assert not [record for record in world.recorded if isinstance(record, Retried)]


def test_an_episode_keeps_its_replica_and_moves_where_it_must(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    failed = set[int]()

    async def fail(number: int, attempt: int, prompt: Prompt, replica: str) -> None:
        if number == 3 and replica == "rollout-0" and number not in failed:
            failed.add(number)
            raise InternalError("out of memory")

    world.faults = fail
    groups = run(world)
    makers = [
        {segment.replica for segment in c.segments} for g in groups for c in g.group.completions_G
    ]
    assert sum(len(names) > 1 for names in makers) <= 1
    retried = [record for record in world.recorded if isinstance(record, Retried)]
    assert len(retried) == len(failed)
    assert all(record.replica == "rollout-0" for record in retried)


@pytest.mark.parametrize("seed", range(4))
def test_seeded_faults_in_whole_runs(tmp_path: Path, seed: int) -> None:
    """Every run ends, nothing trains twice, every episode is closed, and no fault is a score."""
    world = make_world(tmp_path, replicas=2)
    drawn = random.Random(seed)
    num_faults = 0

    async def fail(name: str, turn: int) -> None:
        nonlocal num_faults
        if drawn.random() < 0.15:
            num_faults += 1
            kinds = [InternalError, DeadlineError, UnavailableError]
            raise drawn.choice(kinds)(f"seeded fault {num_faults}")

    for environment in world.environments:
        environment.faults = fail
    groups = run(world)
    assert num_faults >= 20
    assert len(groups) == 24
    consumed = [
        group
        for record in world.recorded
        if isinstance(record, Consumed)
        for group in record.groups
    ]
    assert max(Counter(consumed).values()) == 1
    assert not any(environment.open_names for environment in world.environments)
    for scored in groups:
        for completion, verdict in zip(scored.group.completions_G, scored.verdicts_G, strict=True):
            assert bool(completion.fault) == isinstance(verdict, Faulted)


def test_the_environments_reward_is_a_term_beside_the_rules(tmp_path: Path) -> None:
    section = {"factory": "guess.py:Guess", "weight": 0.5}
    world = World(tmp_path, make_config(environment=section))
    for scored in run(world):
        for completion, verdict in zip(scored.group.completions_G, scored.verdicts_G, strict=True):
            assert isinstance(verdict, Score) and completion.reward is not None
            assert verdict.terms["environment"] == completion.reward
            assert verdict.reward == 0.5 * completion.reward  # the rule gave 0
    assert world.reward.calls


def test_an_episode_without_any_reward_is_worth_nothing(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    world.environments[0].reply = lambda name, turn, message: (
        Reply(done=True, reward=None if name.split(".")[2] == "0" else 1.0) if turn == 2 else None
    )
    for scored in run(world):
        assert scored.verdicts_G == (
            Score(0.0, {"environment": 0.0}),
            Score(1.0, {"environment": 1.0}),
        )


def test_a_completion_says_that_it_is_covered() -> None:
    """A sampled token without a maker, or a maker without a token, is refused by the trainer."""
    from trimaran.types import Segment, VersionId

    segment = Segment(2, 4, VersionId(0, 1), "rollout-0")
    whole = Completion((1, 2, 3, 4, 5), (-0.1, -0.2), "", "stop", (segment,))
    assert whole.is_covered
    assert not replace(whole, logprobs_S=(-0.1,)).is_covered
    assert not replace(whole, segments=(replace(segment, end=6),)).is_covered
