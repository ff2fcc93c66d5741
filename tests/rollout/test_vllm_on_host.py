"""The sampler and the norms that replace vLLM's on a processor: the same numbers."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.rollout.vllm import on_host
from services.rollout.vllm.on_host import draw


@pytest.mark.parametrize("vocabulary", [6, 6 * 64, 6 * 1000])
def test_tokens_are_drawn_from_the_softmax(vocabulary: int) -> None:
    """Spread over many parts of the vocabulary, or in one."""
    probabilities_P = torch.tensor([0.5, 0.0, 0.25, 0.2, 0.05, 0.0])
    places_P = torch.arange(6) * (vocabulary // 6) + vocabulary // 6 - 1
    logits_V = torch.full((vocabulary,), -torch.inf)
    logits_V[places_P] = 3.0 + probabilities_P.log()
    num_draws = 40_000 if vocabulary < 1000 else 4_000
    torch.manual_seed(0)
    tokens_N, logprobs_NV = draw(logits_V.repeat(num_draws, 1))
    found_P = torch.bincount(tokens_N, minlength=vocabulary)[places_P] / num_draws
    deviation_P = (probabilities_P * (1 - probabilities_P) / num_draws).sqrt()
    assert ((found_P - probabilities_P).abs() <= 5 * deviation_P).all()
    assert found_P.sum().item() == pytest.approx(1.0)
    assert torch.allclose(logprobs_NV[0, places_P], probabilities_P.log(), atol=1e-6)


def test_each_row_is_drawn_from_its_own_logits() -> None:
    torch.manual_seed(0)
    logits_NV = torch.full((64, 50_000), -torch.inf)
    wanted_N = torch.randint(50_000, (64,))
    logits_NV[torch.arange(64), wanted_N] = 0.0
    assert torch.equal(draw(logits_NV)[0], wanted_N)


def test_the_largest_random_number_draws_no_token_of_probability_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "rand_like", torch.ones_like)
    logits_NV = torch.randn(500, 1024)
    logits_NV[:, 700:] = -torch.inf
    assert draw(logits_NV.clone())[0].eq(699).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_spoils_no_other(bad: float) -> None:
    logits_NV = torch.full((3, 1024), -torch.inf)
    logits_NV[:, 7] = 0.0
    logits_NV[1, 3] = bad
    tokens_N, logprobs_NV = draw(logits_NV)
    assert (tokens_N[0], tokens_N[2]) == (7, 7)
    assert logprobs_NV[:, 7].isnan().tolist() == [False, True, False]
    assert logprobs_NV[1, tokens_N[1]].isnan()


@pytest.mark.parametrize("num_others", [25_000, 25_087])
def test_long_tails_are_drawn(num_others: int) -> None:
    """Half of the mass lies on tokens each far below one float32 step of a running sum of 1."""
    torch.manual_seed(0)
    logits_NV = torch.zeros(4000, 1 + num_others)
    logits_NV[:, 0] = torch.log(torch.tensor(float(num_others)))
    share = (draw(logits_NV)[0] == 0).float().mean().item()
    assert share == pytest.approx(0.5, abs=5 * 0.5 / 4000**0.5)


def test_the_sampler_counts_no_ranks_and_leaves_seeds_to_vllm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampler = pytest.importorskip("vllm.v1.sample.sampler")
    monkeypatch.setattr(sampler, "batched_count_greater_than", sampler.batched_count_greater_than)
    inner = SimpleNamespace(forward=lambda *_: "vllm's")
    on_host.install_sampler(inner)
    logprobs_NV = torch.tensor([[0.1, 0.2, 0.7]]).log()
    found = sampler.Sampler.gather_logprobs(logprobs_NV, 0, torch.tensor([1]))
    assert found.logprob_token_ids.tolist() == [[1]]
    assert found.logprobs.tolist() == [[logprobs_NV[0, 1].item()]]
    assert found.selected_token_ranks.tolist() == [0]
    assert inner.forward(logprobs_NV, {0: torch.Generator()}, None, None) == "vllm's"
    best = torch.tensor([1])  # top_k
    tokens_N, chosen_NV = inner.forward(logprobs_NV.clone(), {}, best, None)
    assert tokens_N.tolist() == [2]
    assert chosen_NV[0].tolist() == [-torch.inf, -torch.inf, 0.0]


def test_norms_give_vllm_s_numbers() -> None:
    layernorm: Any = pytest.importorskip("vllm.model_executor.layers.layernorm")
    from vllm.config import VllmConfig, set_current_vllm_config

    torch.manual_seed(0)
    x, residual = torch.randn(2, 5, 64).bfloat16()
    with set_current_vllm_config(VllmConfig()):
        norm, plain = layernorm.RMSNorm(64, 1e-5, dtype=torch.bfloat16), layernorm.RMSNorm(64)
        odd = layernorm.RMSNorm(20)
    norm.weight.data.uniform_(0.5, 2.0)
    rows = torch.randn(5, 96).bfloat16()[:, :64]  # of a product that has other columns, too
    expected = [norm(x), *norm(x.clone(), residual.clone()), norm(rows)]
    own, heads = norm._forward_method, torch.randn(5, 3, 64).bfloat16()
    on_host.install_norms(torch.nn.ModuleList([norm, plain, odd]))
    assert norm._forward_method is not own
    found = [norm(x), *norm(x.clone(), residual.clone()), norm(rows)]
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=2**-7)
    # Weights that a load puts in its place are read.
    norm.weight = torch.nn.Parameter(2 * norm.weight.data)
    assert torch.allclose(norm(x).float(), 2 * found[0].float(), rtol=2**-7)
    assert plain(heads).dtype == torch.bfloat16
    assert odd(torch.ones(1, 20)).tolist() == [[pytest.approx(1.0)] * 20]
