"""Names of other projects: what they are made of, and the laws that their authors name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.configs import configure
from trimaran.telemetry.metrics import find_metric
from trimaran.telemetry.other_names import NAMES, Facts, OtherNames, facts_of
from trimaran.telemetry.run_files import METRICS_NAME, MetricsWriter, read_json_lines

ALWAYS = ("planning", "advantages", "gradient", "optimizer")
THEIRS = {
    "old_logprobs": ("timing/old_log_p", "timing_s/old_log_prob"),
    "reference_logprobs": ("timing/reference_model", "timing_s/ref"),
}
"""Of parts that not each step has."""
seconds = st.floats(0.001, 1000)


def names_of(values: Mapping[str, float], facts: Facts | None = None) -> dict[str, float]:
    return OtherNames(("verl", "mindspeed-rl"), facts or Facts(devices=8)).of(values)


def union(spans: Sequence[tuple[float, float]]) -> float:
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return total


@st.composite
def steps_in_turns(draw: st.DrawFn) -> dict[str, float]:
    """A step at max_lag 0: groups are generated and scored, then the batch trains, then it is synced."""
    spans = st.tuples(seconds, seconds, st.floats(0, 5))
    made, scored = [], []
    for start, length, judged in draw(st.lists(spans, min_size=1, max_size=8)):
        made.append((start, start + length))
        scored.append((start + length, start + length + judged))
    parts = {part: draw(seconds) for part in ALWAYS}
    parts |= {part: draw(seconds) for part in draw(st.sets(st.sampled_from([*THEIRS])))}
    syncing, unnamed, rest = draw(seconds), draw(st.floats(0, 10)), draw(st.floats(0, 10))
    generating, training = union(made), sum(parts.values()) + unnamed
    step = max(stop for _, stop in scored) + training + syncing + rest
    return {
        **{f"trainer/part/{part}/seconds": value for part, value in parts.items()},
        "controller/phase/generating/seconds": generating,
        "controller/phase/scoring/seconds": union(scored),
        "controller/scoring/exposed_seconds": union([*made, *scored]) - generating,
        "controller/phase/training/seconds": training,
        "controller/phase/syncing/seconds": syncing,
        "controller/step/seconds": step,
        "controller/step/tokens_per_second": 1e6 / step,
    }


@given(values=steps_in_turns())
def test_mindspeeds_law_of_a_steps_time(values: dict[str, float]) -> None:
    """What MindSpeed-RL's guide says of `timing/all`."""
    named = names_of(values)
    parts = ("rollout", "old_log_p", "update", "reference_model", "adv")
    moves = ("resharding_to_train", "resharding_to_infer")
    exposed = ("non_overlap_rule_reward", "non_overlap_reference_model")
    total = sum(named.get(f"timing/{part}", 0.0) for part in (*parts, *moves))
    total += max(named.get(f"timing/{part}", 0.0) for part in exposed)
    assert named["timing/all"] >= total * (1 - 1e-9)
    assert named["timing/update"] >= 0.002  # of a gradient and an optimizer
    for part, (mindspeed, verl) in THEIRS.items():
        has_part = f"trainer/part/{part}/seconds" in values
        assert (mindspeed in named, verl in named) == (has_part, has_part)
    assert ("timing/non_overlap_reference_model" in named) == ("timing/reference_model" in named)
    assert named.get("timing/non_overlap_adv") == named.get("timing/adv")
    assert named["timing/non_overlap_rule_reward"] <= named["timing/rule_reward"] * (1 + 1e-9)


@given(
    response=st.floats(1, 30000),
    prompt=st.floats(1, 30000),
    prompts=st.integers(1, 1000),
    answers=st.integers(1, 64),
    devices=st.integers(1, 1024),
    values=steps_in_turns(),
)
def test_throughput_by_each_projects_formula(
    response: float,
    prompt: float,
    prompts: int,
    answers: int,
    devices: int,
    values: dict[str, float],
) -> None:
    tokens = (response + prompt) * prompts * answers
    values["controller/step/tokens_per_second"] = tokens / values["controller/step/seconds"]
    named = names_of(values, Facts(devices=devices))

    def tps(time: str) -> float:
        return (response + prompt) * prompts * answers / devices / named[f"timing/{time}"]

    assert named["e2e_tps"] == pytest.approx(tps("all"))
    assert named["update_tps"] == pytest.approx(tps("update"))
    assert named["vllm_tps"] == pytest.approx(tps("rollout"))
    assert named["perf/total_num_tokens"] == pytest.approx(tokens)
    throughput = named["perf/total_num_tokens"] / (named["perf/time_per_step"] * devices)
    assert named["perf/throughput"] == pytest.approx(throughput)
    assert named["e2e_tps"] <= min(named["update_tps"], named["vllm_tps"]) * (1 + 1e-9)
    assert named["timing_s/step"] == named["timing/all"]


def test_a_name_is_left_out_where_its_ingredients_are_missing() -> None:
    assert names_of({}).keys() == {
        "timing/resharding_to_train",
        "timing/reshard_to_train",
        "actor/ppo_kl",
    }
    values = {"trainer/loss": -0.5, "trainer/kl": 0.1, "reward/completion/mean": 0.5}
    plain = names_of(values)
    assert plain["actor/pg_loss"] == 0.5  # MindSpeed-RL's, which has no sign
    assert OtherNames(("verl",), Facts(8)).of(values)["actor/pg_loss"] == -0.5
    mixed = OtherNames(("verl",), Facts(8, is_plain_loss=False, kl_in_reward=True)).of(values)
    assert "actor/pg_loss" not in mixed
    assert mixed["critic/score/mean"] == 0.5
    assert "critic/rewards/mean" not in mixed
    assert "actor/ppo_kl" not in names_of(values, Facts(8, has_one_update=False))


def test_an_update_without_an_optimizer_is_its_gradient() -> None:
    """As where a number was not finite."""
    named = names_of({"trainer/part/gradient/seconds": 2.0})
    assert (named["timing/update"], named["timing_s/update_actor"]) == (2.0, 2.0)
    assert "timing/update" not in names_of({"controller/phase/training/seconds": 2.0})


def test_each_verifier_has_its_own_mean() -> None:
    named = names_of({"reward/term/acc/mean": 0.5, "reward/term/math.format/mean": 0.25})
    assert (named["acc_rewards/mean"], named["math.format_rewards/mean"]) == (0.5, 0.25)


@pytest.mark.parametrize("scheme", NAMES)
def test_keys_of_ours_are_declared(scheme: Any) -> None:
    assert all(find_metric(key).key for key in NAMES[scheme].values() if isinstance(key, str))


@pytest.mark.parametrize(
    ("algorithm", "facts"),
    [
        ({}, Facts(2)),
        ({"updates_per_batch": 2}, Facts(2, has_one_update=False)),
        ({"correction": {"old": "rollout"}}, Facts(2, has_one_update=False)),
        ({"kl": {"coefficient": 0.1}}, Facts(2, is_plain_loss=False)),
        ({"kl": {"coefficient": 0.1, "place": "reward"}}, Facts(2, kl_in_reward=True)),
        ({"entropy": {"coefficient": 0.1}}, Facts(2, is_plain_loss=False)),
    ],
)
def test_the_facts_of_a_run(algorithm: dict[str, Any], facts: Facts) -> None:
    assert facts_of(configure(algorithm=algorithm)) == facts


def test_they_stand_beside_ours_in_rows_of_their_kind(tmp_path: Path) -> None:
    metrics = MetricsWriter(tmp_path, OtherNames(("verl",), Facts(2)))
    metrics.write("step", 1, {"trainer/learning_rate": 1e-6})
    metrics.write("validation", 1, {"validation/task/add/greedy_correct/share": 0.5})
    metrics.close()
    step, validation = read_json_lines(tmp_path / METRICS_NAME)
    assert step["trainer/learning_rate"] == step["actor/lr"] == 1e-6
    assert "grpo/lr" not in step
    ours = {"kind", "step", "time", "validation/task/add/greedy_correct/share"}
    assert validation.keys() == ours | {"val-core/add/acc/mean@1"}
    assert OtherNames(("mindspeed-rl",), Facts(2)).of_validation(validation) == {}
