"""Groups without a signal are replaced, and greedy answers stand beside groups."""

from __future__ import annotations

from pathlib import Path

from services.controller.greedy import FIRST_NUMBER
from tests.controller.fakes import World, make_config, run
from trimaran.ledger.group_life import GroupLife
from trimaran.ledger.group_words import tell
from trimaran.types import Faulted, Group, Score, Verdict
from trimaran.wire.messages import parse_scored_group, serialize_scored_group

GROUPS, STEPS = 4, 6


def rewarding(world: World, equal: set[int] | None = None) -> None:
    """Groups of these numbers have equal rewards; None: all of them."""

    async def faults(group: Group) -> tuple[Verdict, ...]:
        if equal is None or group.number in equal:
            return (Score(1.0),) * len(group.completions_G)
        return tuple(Score(float(place)) for place in range(len(group.completions_G)))

    world.reward.faults = faults


def test_groups_without_a_signal_are_replaced_by_further_prompts(tmp_path: Path) -> None:
    config = make_config(algorithm={"dynamic_sampling": {"max_replaced": 3}}, run={"max_lag": 1})
    world = World(tmp_path, config)
    rewarding(world, {1, 2, 9})
    run(world)
    wanted = [number for number in range(GROUPS * STEPS + 3) if number not in {1, 2, 9}]
    assert world.trained_numbers() == wanted
    assert {number: one.reason for number, one in world.filtered().items()} == dict.fromkeys(
        (1, 2, 9), "all its rewards are 1 (algorithm.dynamic_sampling)"
    )
    assert {one.rewards for one in world.filtered().values()} == {(1.0, 1.0)}
    assert world.events.count(("replaced",)) == world.ledger.state.totals.filtered == 3
    assert not world.skipped()


def test_where_nothing_has_a_signal_the_run_goes_on_all_the_same(tmp_path: Path) -> None:
    """Six groups are replaced for each step, and then what comes trains."""
    config = make_config(algorithm={"dynamic_sampling": {"max_replaced": 1.5}})
    world = World(tmp_path, config)
    rewarding(world)
    run(world)
    assert world.ledger.state.step == STEPS
    assert len(world.filtered()) == STEPS * 6
    assert len(world.trained_numbers()) == STEPS * GROUPS


def test_groups_may_be_chosen_by_one_term(tmp_path: Path) -> None:
    """All right, and one of them a little long: nothing to learn but brevity."""
    algorithm = {"dynamic_sampling": {"term": "exact_match"}}
    world = World(tmp_path, make_config(algorithm=algorithm))

    async def faults(group: Group) -> tuple[Verdict, ...]:
        equal = group.number == 2
        return (
            Score(1.0, {"exact_match": 1.0}),
            Score(0.9, {"exact_match": 1.0 if equal else 0.0}),
        )

    world.reward.faults = faults
    run(world)
    assert [one.reason for one in world.filtered().values()] == [
        "all its values of exact_match are 1 (algorithm.dynamic_sampling)"
    ]
    assert list(world.filtered()) == [2]
    (replaced,) = world.filtered().values()
    assert (replaced.rewards, replaced.terms) == ((1.0, 0.9), (("exact_match", (1.0, 1.0)),))
    life = GroupLife(2)
    for record in world.recorded:
        life.add(record)
    assert list(tell(life))[-3:] == [
        "  filtered, so it never trains: all its values of exact_match are 1 (algorithm.dynamic_sampling)",
        "    completion 1: reward 1 (exact_match 1)",
        "    completion 2: reward 0.9 (exact_match 1)",
    ]


def test_a_faulted_completion_is_no_signal(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(algorithm={"dynamic_sampling": {}}))

    async def faults(group: Group) -> tuple[Verdict, ...]:
        return (Score(0.0), Faulted("lost")) if group.number == 3 else (Score(0.0), Score(1.0))

    world.reward.faults = faults
    run(world)
    assert list(world.filtered()) == [3]


def test_each_group_has_the_reward_of_a_greedy_answer_where_the_advantage_wants_it(
    tmp_path: Path,
) -> None:
    world = run(World(tmp_path, make_config(algorithm={"advantage": "remax"})))
    trained = [scored for batch in world.trainer.batches for scored in batch.groups]
    # The fake's token at temperature 0 is odd, and odd ones are right.
    assert [scored.greedy_reward for scored in trained] == [1.0] * (GROUPS * STEPS)
    asked = sorted({event[1] for event in world.events if event[0] == "generate"})
    numbers = range(GROUPS * STEPS)
    assert asked == [*numbers, *(FIRST_NUMBER + number for number in numbers)]
    again = parse_scored_group(trained[0].payload)
    assert again == trained[0] and again.greedy_reward == 1.0
    assert serialize_scored_group(trained[0]) == trained[0].payload
