from dataclasses import replace

import pytest

from services.controller.reporting.busy_time import BusyTime
from services.controller.reporting.step_metrics import (
    count_faulted,
    count_tokens,
    describe_batch,
    describe_pace,
    describe_proofs,
)
from tests.controller.fakes import PROMPTS, make_config
from trimaran.telemetry.metrics import LAG_MAX, LENGTH_MEAN, REWARD_MEAN, TOKENS_PER_SECOND
from trimaran.types import (
    Branch,
    Completion,
    Faulted,
    Group,
    Message,
    Proof,
    Score,
    ScoredGroup,
    Segment,
    TrainingBatch,
    Turn,
    Verdict,
    VersionId,
)


def completion(length: int, reason: str, *steps: int) -> Completion:
    """Of tokens of these steps, one each, and the last step the rest."""
    ends = (*range(1, len(steps)), length)
    segments = tuple(
        Segment(i, end, VersionId(0, step), "r")
        for i, (end, step) in enumerate(zip(ends, steps, strict=True))
    )
    return Completion((1,) * length, (0.0,) * length, "", reason, segments)


def group(prompt_length: int, *parts: tuple[Completion, Verdict]) -> ScoredGroup:
    completions = tuple(part[0] for part in parts)
    made = Group(0, 1, PROMPTS[0], (1,) * prompt_length, completions)
    return ScoredGroup(made, tuple(part[1] for part in parts))


BATCH = TrainingBatch(
    4,
    (
        group(5, (completion(2, "stop", 3), Score(1.0)), (completion(4, "length", 2), Score(0.0))),
        group(
            7, (completion(6, "stop", 1, 3), Faulted("x")), (completion(8, "stop", 3), Score(1.0))
        ),
    ),
)


def test_a_batch_in_numbers() -> None:
    values = describe_batch(BATCH)
    assert values[REWARD_MEAN] == pytest.approx(2 / 3)
    assert values["reward/completion/std"] == pytest.approx((2 / 9) ** 0.5)
    assert values["reward/completion/faulted/share"] == 0.25
    assert values["reward/group/equal/share"] == 0.5
    assert values["reward/group/std"] == 0.25
    lengths = {
        statistic: values[f"rollout/completion/length/{statistic}"]
        for statistic in ("mean", "min", "max")
    }
    assert lengths == {"mean": values[LENGTH_MEAN], "min": 2, "max": 8}
    assert values[LENGTH_MEAN] == 5
    prompts = [values[f"rollout/prompt/length/{statistic}"] for statistic in ("mean", "min", "max")]
    assert prompts == [6, 5, 7]
    assert (values["reward/completion/min"], values["reward/completion/max"]) == (0.0, 1.0)
    assert values["rollout/completion/truncated/share"] == 0.25
    # trained on weights of step 3: ages 0, 1, 2 (its oldest token) and 0
    assert values["rollout/completion/lag/mean"] == 0.75
    assert values[LAG_MAX] == 2


def test_a_batch_of_episodes_in_numbers() -> None:
    def of_step(step: int, start: int, end: int) -> Segment:
        return Segment(start, end, VersionId(0, step), "r")

    said = Message("assistant", "CALC 3*4")
    turns = (
        Turn(said, 2, num_given=3, seconds=0.5, num_calls=2, num_failures=1),
        Turn(said, 1, seconds=0.25),
        Turn(said, 1, num_given=2, num_calls=1, sequence=1),
        Turn(said, 1, sequence=1),
    )
    branch = Branch((4, 7, 7, 8), (0.0,) * 2, (of_step(1, 0, 1), of_step(3, 3, 4)))
    segments = (of_step(2, 0, 2), of_step(3, 5, 6))
    long = Completion((1,) * 6, (0.0,) * 3, "", "turns", segments, turns=turns, branches=(branch,))
    short = replace(completion(3, "stop", 3), turns=turns[:1])
    lost = Completion((), (), "", "fault", (), fault="the environment died")
    scored = group(5, (long, Score(1.0)), (short, Score(0.0)), (lost, Faulted("lost")))
    batch = TrainingBatch(4, (scored,))
    values = describe_batch(batch)
    assert values[LENGTH_MEAN] == (5 + 3) / 2
    assert values["rollout/completion/length/min"] == 3
    assert values[LAG_MAX] == 2
    assert values["rollout/completion/truncated/share"] == 0.5
    assert {k: v for k, v in values.items() if k.startswith("environment/")} == {
        "environment/turns/mean": 2.5,
        "environment/turns/max": 4,
        "environment/given_tokens/mean": (5 + 3) / 2,
        "environment/seconds/mean": (0.75 + 0.5) / 2,
        "environment/calls/mean": (3 + 2) / 2,
        "environment/calls/failed/share": 2 / 5,
    }
    assert count_tokens(batch) == (5 + 6) + (5 + 4) + (5 + 3) + 5
    proof = Proof(VersionId(0, 1), "r", "root", 4, 4)
    assert describe_proofs(batch, [proof])[f"weight_sync/proof/tokens/{proof.level}"] == 1


def test_each_term_counts_where_it_was_judged() -> None:
    verdicts = [
        Score(1.5, {"gsm8k": 1.0, "style": 0.5, "style.length": 40.0}),
        Score(0.0, {"gsm8k": 0.0}),  # style does not apply
        Score(0.25, {"gsm8k": 0.0, "style": 0.25, "style.length": 10.0}, indigestible=True),
        Faulted("style: away", {"gsm8k": 1.0}, ("style",)),
        Faulted("the call failed", {}, ("gsm8k", "style")),
    ]
    parts = [(completion(1, "stop", 3), verdict) for verdict in verdicts]
    batch = TrainingBatch(4, (group(5, *parts[:3]), group(5, *parts[3:])))
    values = describe_batch(batch)
    assert {k: v for k, v in values.items() if k.startswith("reward/term/")} == {
        "reward/term/gsm8k/mean": 0.5,
        "reward/term/gsm8k/min": 0.0,
        "reward/term/gsm8k/max": 1.0,
        "reward/term/gsm8k/faulted/share": 1 / 5,
        "reward/term/style/mean": 0.375,
        "reward/term/style/min": 0.25,
        "reward/term/style/max": 0.5,
        "reward/term/style/faulted/share": 2 / 4,
        "reward/term/style.length/mean": 25.0,
        "reward/term/style.length/min": 10.0,
        "reward/term/style.length/max": 40.0,
    }
    assert values["reward/completion/indigestible/share"] == 1 / 5
    assert values["reward/completion/faulted/share"] == pytest.approx(2 / 5)
    assert count_faulted(batch) == 2


def test_pace_counts_every_device_of_both_pools() -> None:
    config = make_config(
        rollout={"replicas": 2, "tensor_parallel": 2},
        trainer={"tensor_parallel": 2, "data_parallel": 2},
    )
    assert config.num_devices == 8
    values = describe_pace(BATCH, 2.0, {"training": 1.5}, config)
    tokens = (5 + 2) + (5 + 4) + (7 + 6) + (7 + 8)
    assert values[TOKENS_PER_SECOND] == tokens / 2
    assert values["controller/step/tokens_per_second_per_device"] == tokens / 2 / 8
    assert values["controller/step/samples_per_second"] == 2.0
    assert values["controller/phase/training/seconds"] == 1.5


def test_overlapping_uses_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("services.controller.reporting.busy_time.time.time", lambda: now[0])
    spans: list[tuple[float, float]] = []
    activity = BusyTime(lambda start, end: spans.append((start, end)))
    with activity:
        now[0] = 101
        with activity:
            now[0] = 103
        now[0] = 104
    now[0] = 110
    with activity:
        now[0] = 111
        assert activity.cut() == 5
        now[0] = 113
    assert spans == [(100, 104), (110, 111), (111, 113)]
    assert activity.cut() == 2


def test_tokens_are_counted_by_the_level_of_their_proofs() -> None:
    made = (completion(3, "stop", 1, 1, 2), completion(2, "stop", 2, 3))
    batch = TrainingBatch(4, (group(5, *((one, Score(1.0)) for one in made)),))
    loaded = {1: 4, 2: 1, 3: 0}
    proofs = [Proof(VersionId(0, step), "r", "root", 4, num) for step, num in loaded.items()]
    assert describe_proofs(batch, proofs) == {
        "weight_sync/proof/tokens/delivered": 1,
        "weight_sync/proof/tokens/sampled": 2,
        "weight_sync/proof/tokens/loaded": 2,
    }
