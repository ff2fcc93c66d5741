"""Losses by hand, and against plain loops whose gradient is a difference quotient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.trainer.grpo.kinds import Loss, Tokens
from services.trainer.grpo.losses import (
    Cispo,
    ClipCov,
    GeometricMean,
    Gspo,
    KlCov,
    PpoClip,
    Sapo,
)
from tests.trainer.grpo.tokens import gradient, leaf, make_tokens, random_tokens

ALL: tuple[Loss, ...] = (
    PpoClip(),
    PpoClip(dual_clip=3.0),
    Gspo(),
    Cispo(),
    Sapo(),
    GeometricMean(),
    ClipCov(),
    KlCov(),
)
OF_ANY_SPLIT = tuple(loss for loss in ALL if not isinstance(loss, ClipCov | KlCov))


def near(want: Any, rel: float = 1e-9) -> Any:
    return pytest.approx(want, rel=rel, abs=1e-9)


def of_one(loss: Loss, ratio: float, advantage: float) -> tuple[float, float, dict[str, float]]:
    """Value, gradient and metrics of one token that is a completion."""
    logprobs = leaf([-1.0 + math.log(ratio)])
    answer = loss(logprobs, make_tokens([-1.0], [advantage]))
    [slope] = gradient(answer.losses_M.sum(), logprobs)
    metrics = {key: values.item() for key, values in answer.metrics.items()}
    return answer.losses_M.item(), slope, metrics


# By hand

PPO, DUAL = PpoClip(clip_low=0.2, clip_high=0.3), PpoClip(dual_clip=3.0)


@pytest.mark.parametrize(
    ("loss", "ratio", "advantage", "value", "slope", "bounded"),
    [
        # inside the clip range: -r * A, gradient -r * A
        (PPO, 1.1, 2.0, -2.2, -2.2, None),
        # above 1 + high with A > 0: clipped at 1.3, no gradient
        (PPO, 1.5, 2.0, -2.6, 0.0, None),
        # above 1 + high with A < 0: the minimum keeps the unclipped term
        (PPO, 1.5, -2.0, 3.0, 3.0, None),
        # below 1 - low with A < 0: clipped at 0.8, no gradient
        (PPO, 0.5, -2.0, 1.6, 0.0, None),
        # a bad token costs 3 * 2 at most
        (DUAL, 5.0, -2.0, 6.0, 0.0, 1.0),
        (DUAL, 2.0, -2.0, 4.0, 4.0, 0.0),
        (DUAL, 5.0, 2.0, -2.4, 0.0, 0.0),
    ],
)
def test_ppo_clips_the_ratio_and_the_dual_clip_what_a_bad_token_costs(
    loss: Loss, ratio: float, advantage: float, value: float, slope: float, bounded: float | None
) -> None:
    *got, metrics = of_one(loss, ratio, advantage)
    assert got == near([value, slope])
    assert metrics.get("dual_clipped/share") == bounded
    if bounded is None:
        assert metrics == {"clipped/share": float(slope == 0.0)}


def test_cispo_keeps_a_gradient_for_every_token() -> None:
    logprob = -1 + math.log(1.5)
    loss, slope, metrics = of_one(Cispo(clip_high=0.2), 1.5, 2.0)
    assert (loss, slope) == near((-1.2 * 2 * logprob, -1.2 * 2))
    assert metrics == {"clipped/share": 1.0}
    # No lower bound, unless one is given.
    assert of_one(Cispo(), 0.1, 2.0)[1:] == (near(-0.2), {"clipped/share": 0.0})
    assert of_one(Cispo(clip_low=0.2), 0.1, 2.0)[1:] == (near(-1.6), {"clipped/share": 1.0})
    assert of_one(Cispo(clip_low=0), 0.1, 2.0)[1:] == (near(-2.0), {"clipped/share": 1.0})


def test_clip_cov_draws_the_share_that_it_was_given_and_again_the_same() -> None:
    num = 400
    logprobs = leaf([-1.0, -9.0] * num)
    tokens = make_tokens([-1.0, -9.0] * num, [1.0, 0.0] * num, seed=1)
    loss = ClipCov(share=0.1)  # every covariance is 0.5 * 4
    first = loss(logprobs, tokens).metrics["covariance_clipped/share"]
    assert first.sum() == 80
    again = loss(logprobs, tokens).metrics["covariance_clipped/share"]
    assert again.tolist() == first.tolist()
    other = loss(logprobs, replace(tokens, seed=2)).metrics["covariance_clipped/share"]
    assert other.sum() == 80 and other.tolist() != first.tolist()


# Edges


@pytest.mark.parametrize("loss", ALL)
def test_a_micro_batch_without_tokens_has_a_loss_of_none(loss: Loss) -> None:
    for num_completions in (0, 2):
        logprobs = leaf([], torch.float32)
        tokens = replace(make_tokens([], [], dtype=torch.float32), num_completions=num_completions)
        answer = loss(logprobs, tokens)
        answer.losses_M.sum().backward()
        assert answer.losses_M.shape == (0,)
        assert all(values.shape == (0,) for values in answer.metrics.values())


@pytest.mark.parametrize("loss", ALL)
def test_numbers_stay_float32_and_metrics_have_no_gradient(loss: Loss) -> None:
    logprobs = leaf([-1.0, -2.0], torch.float32)
    tokens = make_tokens([-1.1, -1.5], [1.0, -1.0], dtype=torch.float32)
    answer = loss(logprobs, tokens)
    assert answer.losses_M.dtype == torch.float32 and answer.losses_M.requires_grad
    for values in answer.metrics.values():
        assert values.dtype == torch.float32 and not values.requires_grad
        assert values.shape == (2,)


@pytest.mark.parametrize("loss", ALL)
@given(random_tokens())
def test_at_the_first_update_every_loss_has_the_gradient_of_reinforce(
    loss: Loss, drawn: tuple[list[float], Tokens]
) -> None:
    """Where nothing is clipped: -A, but for the tokens that Clip-Cov leaves out."""
    current, tokens = drawn
    logprobs = leaf(current)
    answer = loss(logprobs, replace(tokens, old_logprobs_M=logprobs.detach().clone()))
    slopes = gradient(answer.losses_M.sum(), logprobs)
    left_out = answer.metrics.get("covariance_clipped/share", torch.zeros(len(current)))
    want = (-tokens.advantages_M * (1 - left_out)).tolist()
    assert slopes == near(want)


@pytest.mark.parametrize("nats", [25.0, 200.0, math.inf])
@pytest.mark.parametrize("loss", [PpoClip(), KlCov(coefficient=1e-30)])
def test_a_ratio_is_limited_at_20_nats_and_has_no_gradient_beyond(loss: Loss, nats: float) -> None:
    logprobs = leaf([-1.0, -1.0], torch.float32)
    tokens = make_tokens([-1.0 - nats, -1.1], [-1.0, -1.0], dtype=torch.float32)
    losses = loss(logprobs, tokens).losses_M
    assert losses.tolist() == near([math.exp(20), math.exp(0.1)], 1e-5)
    assert gradient(losses.sum(), logprobs) == near([0.0, math.exp(0.1)], 1e-5)


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("where", ["logprobs", "old", "advantages"])
def test_no_limit_hides_a_nan(loss: Loss, where: str) -> None:
    bad = {key: [math.nan if key == where else -1.0] for key in ("logprobs", "old", "advantages")}
    tokens = make_tokens(bad["old"], bad["advantages"])
    assert loss(leaf(bad["logprobs"]), tokens).losses_M.isnan().all()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (PpoClip, {"dual_clip": 1.0}),
        (PpoClip, {"clip_low": 0.0}),
        (PpoClip, {"clip_low": 1.5}),
        (Gspo, {"clip_high": -1.0}),
        (Sapo, {"tau_positive": 0.0}),
        (ClipCov, {"share": 0.0}),
        (KlCov, {"share": 2.0}),
        (Cispo, {"clip": 0.2}),
    ],
)
def test_wrong_options_are_refused(kind: type[Loss], options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        kind.model_validate(options)


# Against plain loops: the mean over completions of what each of them contributes

Plain = Callable[[list[float], list[float], float], float]
"""Log-probabilities, old ones and the advantage of one completion -> its contribution."""


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def surrogate(ratio: float, advantage: float, low: float, high: float) -> float:
    return min(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)


def plain_ppo(current: list[float], old: list[float], advantage: float) -> float:
    ratios = [math.exp(new - before) for new, before in zip(current, old, strict=True)]
    return -fmean(surrogate(ratio, advantage, 0.2, 0.2) for ratio in ratios)


def plain_dual(current: list[float], old: list[float], advantage: float) -> float:
    ratios = [math.exp(new - before) for new, before in zip(current, old, strict=True)]
    gains = [surrogate(ratio, advantage, 0.2, 0.2) for ratio in ratios]
    return -fmean(max(gain, 1.5 * advantage) if advantage < 0 else gain for gain in gains)


def plain_gspo(current: list[float], old: list[float], advantage: float) -> float:
    likelihood_ratio = math.exp(sum(current)) / math.exp(sum(old))
    return -surrogate(likelihood_ratio ** (1 / len(old)), advantage, 3e-4, 4e-4)


def plain_sapo(current: list[float], old: list[float], advantage: float) -> float:
    tau = 1.0 if advantage > 0 else 1.05
    ratios = [math.exp(new - before) for new, before in zip(current, old, strict=True)]
    gates = [4 / tau / (1 + math.exp(-tau * (ratio - 1))) for ratio in ratios]
    return -fmean(gates) * advantage


def plain_gmpo(current: list[float], old: list[float], advantage: float) -> float:
    """The product of the smaller of each token's two terms, to the power 1 / length."""
    sign = 1 if advantage > 0 else -1
    product = 1.0
    for new, before in zip(current, old, strict=True):
        ratio = math.exp(new - before)
        bounded = clip(ratio, math.exp(-0.4), math.exp(0.4))
        product *= abs(min(ratio * sign, bounded * sign))
    return -advantage * product ** (1 / len(old))


def cut(numbers: Sequence[float], tokens: Tokens) -> list[list[float]]:
    """By completion."""
    parts: list[list[float]] = [[] for _ in range(tokens.num_completions)]
    for number, place in zip(numbers, tokens.completions_M.tolist(), strict=True):
        parts[place].append(number)
    return parts


def plain_mean(plain: Plain, current: Sequence[float], tokens: Tokens) -> float:
    of_completions = zip(
        cut(current, tokens),
        cut(tokens.old_logprobs_M.tolist(), tokens),
        cut(tokens.advantages_M.tolist(), tokens),
        strict=True,
    )
    return fmean(plain(new, old, advantages[0]) for new, old, advantages in of_completions)


def sequence_mean(losses_M: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    return tokens.mean(losses_M).mean()


def slopes(function: Callable[[list[float]], float], at: list[float]) -> list[float]:
    """By differences; a draw is dropped that lies on a kink, where left and right disagree."""
    step = 1e-6
    here = function(at)

    def slope(place: int, by: float) -> float:
        return (function([x + by * (place == other) for other, x in enumerate(at)]) - here) / by

    answer = []
    for place in range(len(at)):
        left, right = slope(place, -step), slope(place, step)
        assume(abs(left - right) < 1e-4 * max(1, abs(left)))
        answer.append((left + right) / 2)
    return answer


@pytest.mark.parametrize(
    ("loss", "plain"),
    [
        (PpoClip(), plain_ppo),
        (PpoClip(dual_clip=1.5), plain_dual),
        (Gspo(), plain_gspo),
        (Sapo(), plain_sapo),
        (GeometricMean(), plain_gmpo),
    ],
)
@given(random_tokens())
def test_value_and_gradient_are_those_of_the_formula(
    loss: Loss, plain: Plain, drawn: tuple[list[float], Tokens]
) -> None:
    current, tokens = drawn
    logprobs = leaf(current)
    value = sequence_mean(loss(logprobs, tokens).losses_M, tokens)
    assert value.item() == near(plain_mean(plain, current, tokens), 1e-7)
    numeric = slopes(lambda at: plain_mean(plain, at, tokens), current)
    assert gradient(value, logprobs) == pytest.approx(numeric, rel=1e-4, abs=1e-4)


@given(random_tokens())
def test_cispo_is_reinforce_with_a_constant_in_front(drawn: tuple[list[float], Tokens]) -> None:
    current, tokens = drawn
    logprobs = leaf(current)
    answer = Cispo(clip_low=0.1)(logprobs, tokens)
    olds, advantages = tokens.old_logprobs_M.tolist(), tokens.advantages_M.tolist()
    triples = zip(current, olds, advantages, strict=True)
    want = [-clip(math.exp(new - old), 0.9, 1.2) * gain for new, old, gain in triples]
    assert gradient(answer.losses_M.sum(), logprobs) == near(want)
    products = [factor * new for factor, new in zip(want, current, strict=True)]
    assert answer.losses_M.tolist() == near(products)


def plain_covariances(current: list[float], advantages: list[float]) -> list[float]:
    gain, level = fmean(advantages), fmean(current)
    return [(a - gain) * (new - level) for new, a in zip(current, advantages, strict=True)]


@given(random_tokens(), st.sampled_from([2e-4, 0.3, 1.0]))
def test_clip_cov_is_ppo_without_the_tokens_drawn(
    drawn: tuple[list[float], Tokens], share: float
) -> None:
    current, tokens = drawn
    logprobs = leaf(current)
    loss = ClipCov(share=share, lower=0.1, upper=1.0)
    answer = loss(logprobs, tokens)
    usual = PpoClip()(logprobs, tokens)
    covariances = plain_covariances(current, tokens.advantages_M.tolist())
    clipped = usual.metrics["clipped/share"].tolist()
    pairs = zip(covariances, clipped, strict=True)
    candidates = [place for place, (c, cut) in enumerate(pairs) if 0.1 < c < 1.0 and not cut]
    left_out = answer.metrics["covariance_clipped/share"].nonzero().flatten().tolist()
    assert set(left_out) <= set(candidates)
    assert len(left_out) == min(max(int(share * len(current)), 1), len(candidates))
    keep = torch.ones(len(current), dtype=torch.float64)
    keep[left_out] = 0
    torch.testing.assert_close(answer.losses_M, usual.losses_M * keep)
    of_usual = gradient((usual.losses_M * keep).sum(), logprobs)
    assert gradient(answer.losses_M.sum(), logprobs) == near(of_usual)


@given(random_tokens(), st.sampled_from([2e-4, 0.3, 1.0]))
def test_kl_cov_is_the_plain_formula(drawn: tuple[list[float], Tokens], share: float) -> None:
    current, tokens = drawn
    olds, advantages = tokens.old_logprobs_M.tolist(), tokens.advantages_M.tolist()
    covariances = plain_covariances(current, advantages)
    logprobs = leaf(current)
    answer = KlCov(share=share, coefficient=0.5)(logprobs, tokens)
    largest = answer.metrics["penalized/share"].nonzero().flatten().tolist()
    assert len(largest) == max(int(share * len(current)), 1)
    rest = [c for place, c in enumerate(covariances) if place not in largest]
    least = min(covariances[place] for place in largest)
    assert least >= max(rest, default=-math.inf) - 1e-12

    def plain(at: list[float]) -> float:
        total = 0.0
        for place, (new, old, gain) in enumerate(zip(at, olds, advantages, strict=True)):
            total -= math.exp(new - old) * gain
            total += 0.5 * abs(new - old) * (place in largest)
        return total

    losses = answer.losses_M
    assert losses.sum().item() == near(plain(current), 1e-7)
    numeric = slopes(plain, current)
    assert gradient(losses.sum(), logprobs) == pytest.approx(numeric, rel=1e-4, abs=1e-4)


def part(tokens: Tokens, places: list[int]) -> tuple[list[int], Tokens]:
    """The tokens of some completions, as a micro-batch of their own."""
    owners = tokens.completions_M.tolist()
    chosen = [index for place in places for index, owner in enumerate(owners) if owner == place]
    return chosen, make_tokens(
        tokens.old_logprobs_M[chosen].tolist(),
        tokens.advantages_M[chosen].tolist(),
        [places.index(owners[index]) for index in chosen],
    )


@pytest.mark.parametrize("loss", OF_ANY_SPLIT)
@given(random_tokens(), st.integers(0, 1000))
def test_any_split_into_micro_batches_adds_up(
    loss: Loss, drawn: tuple[list[float], Tokens], seed: int
) -> None:
    current, tokens = drawn
    logprobs = leaf(current)
    whole = loss(logprobs, tokens)
    of_whole = gradient(whole.losses_M.sum(), logprobs)
    places = list(range(tokens.num_completions))
    Random(seed).shuffle(places)
    for number in range(2):
        chosen, micro_batch = part(tokens, places[number::2])
        some = leaf([current[index] for index in chosen])
        answer = loss(some, micro_batch)
        torch.testing.assert_close(answer.losses_M, whole.losses_M[chosen])
        for key, of_all in whole.metrics.items():
            assert answer.metrics[key].tolist() == of_all[chosen].tolist()
        want = [of_whole[index] for index in chosen]
        assert gradient(answer.losses_M.sum(), some) == near(want)
