"""Log-probabilities and entropies from hidden states, against plain torch, on one rank and on two."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, HashStore, PrefixStore, ProcessGroupGloo

from services.trainer.megatron import logprobs as module
from services.trainer.megatron.logprobs import OutputHead, vocab_parallel_outputs
from services.trainer.step.outputs import TokenOutputs

TOKENS, ENTRIES, CHANNELS = 7, 11, 5


def plain(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float
) -> TokenOutputs:
    logs = (hidden.double() @ weight.double().t() / temperature).log_softmax(-1)
    chosen = logs.gather(-1, targets[:, None])[:, 0]
    return TokenOutputs(chosen.float(), -(logs.exp() * logs).sum(-1).float())


def inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    hidden = (2 * torch.randn(TOKENS, CHANNELS)).to(dtype)
    weight = torch.randn(ENTRIES, CHANNELS).to(dtype)
    return hidden, weight, torch.randint(0, ENTRIES, (TOKENS,))


def gradients(
    outputs: TokenOutputs, *leaves: torch.Tensor, bonus: float
) -> tuple[torch.Tensor, ...]:
    """Of a loss with different weights for each token."""
    weights = torch.linspace(-1, 2, TOKENS)
    loss = (outputs.logprobs_M * weights).sum()
    if bonus:
        assert outputs.entropies_M is not None
        loss = loss + bonus * (outputs.entropies_M * weights.flip(0)).sum()
    return torch.autograd.grad(loss, leaves)


@pytest.fixture(params=[128, 3])
def small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ROWS", request.param)
    monkeypatch.setattr(module, "CHUNK_ENTRIES", request.param)
    monkeypatch.setattr(module, "MIN_ENTRIES", 1)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("bonus", [0.0, 0.3])
@pytest.mark.parametrize("kind", [module._KeptLogits, module._LogitsAgain])
def test_values_and_gradients_equal_plain_torch(
    temperature: float, bonus: float, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KeptLogits", kind)
    hidden, weight, targets = inputs()
    ours_in = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    plain_in = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    ours = vocab_parallel_outputs(*ours_in, targets, OutputHead(temperature), bool(bonus))
    wanted = plain(*plain_in, targets, temperature)
    assert ours.logprobs_M.dtype == torch.float32
    torch.testing.assert_close(ours.logprobs_M, wanted.logprobs_M, rtol=1e-5, atol=1e-6)
    if bonus:
        torch.testing.assert_close(ours.entropies_M, wanted.entropies_M, rtol=1e-5, atol=1e-6)
    else:
        assert ours.entropies_M is None
    found, expected = (
        gradients(ours, *ours_in, bonus=bonus),
        gradients(wanted, *plain_in, bonus=bonus),
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_many_logits_are_computed_again_in_chunks_and_few_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden, weight, targets = inputs(torch.bfloat16)
    weight.requires_grad_()
    size = TOKENS * ENTRIES * weight.element_size()
    shapes: list[tuple[int, ...]] = []
    linear = module.F.linear

    def watched(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        shapes.append((*x.shape[:-1], len(rows)))
        return linear(x, rows)

    monkeypatch.setattr(module.F, "linear", watched)
    monkeypatch.setattr(module, "MIN_ENTRIES", 2)
    monkeypatch.setattr(module, "CHUNK_LOGITS", 4 * TOKENS)
    found = []
    for limit, wanted in (
        (size, [(TOKENS, ENTRIES)]),
        (size - 1, 2 * [(TOKENS, 4), (TOKENS, 4), (TOKENS, 3)]),
    ):
        shapes.clear()
        monkeypatch.setattr(module, "KEPT_BYTES", limit)
        outputs = vocab_parallel_outputs(hidden, weight, targets, OutputHead())
        [gradient] = torch.autograd.grad(outputs.logprobs_M.sum(), [weight])
        assert shapes == wanted
        found.append((outputs.logprobs_M, gradient))
    torch.testing.assert_close(found[0], found[1], rtol=2e-2, atol=2e-2)
    monkeypatch.setattr(module, "CHUNK_LOGITS", 1)  # never fewer than MIN_ENTRIES
    shapes.clear()
    vocab_parallel_outputs(hidden, weight, targets, OutputHead())
    assert {entries for _, entries in shapes} == {2, 1}


def test_an_fp32_head_is_nearer_to_the_truth_than_bfloat16_logits() -> None:
    hidden, weight, targets = inputs(torch.bfloat16)
    truth = plain(hidden, weight, targets, 1.0).logprobs_M
    errors = [
        (vocab_parallel_outputs(hidden, weight, targets, head).logprobs_M - truth).abs().max()
        for head in (OutputHead(), OutputHead(fp32=True))
    ]
    assert errors[1] < 1e-5 < 1e-3 < errors[0]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cut", [4, 9])
def test_two_ranks_are_one(dtype: torch.dtype, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its part of the vocabulary; bfloat16 with an fp32 head. Gradients of the hidden states
    are added up by the caller."""
    hidden, weight, targets = inputs(dtype)
    fp32 = dtype == torch.bfloat16
    hidden_whole, weight_whole = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    head = OutputHead(0.7, fp32=fp32)
    whole = vocab_parallel_outputs(hidden_whole, weight_whole, targets, head, True)
    expected = gradients(whole, hidden_whole, weight_whole, bonus=0.3)
    store = HashStore()

    def rank(number: int, start: int, stop: int) -> tuple[TokenOutputs, tuple[torch.Tensor, ...]]:
        timeout = timedelta(seconds=30)
        group = ProcessGroupGloo(PrefixStore("pair", store), number, 2, timeout)
        own_hidden = hidden.clone().requires_grad_()
        own_weight = weight[start:stop].clone().requires_grad_()
        head = OutputHead(0.7, group, fp32)  # type: ignore[arg-type]
        outputs = vocab_parallel_outputs(own_hidden, own_weight, targets - start, head, True)
        return outputs, gradients(outputs, own_hidden, own_weight, bonus=0.3)

    def all_reduce(
        tensor: torch.Tensor, op: object = dist.ReduceOp.SUM, group: object = None
    ) -> None:
        options: Any = AllreduceOptions()
        options.reduceOp = op
        group.allreduce([tensor], options).wait()  # type: ignore[attr-defined]

    # The groups are none of the default one's, which two threads cannot have.
    monkeypatch.setattr(module.dist, "all_reduce", all_reduce)
    with ThreadPoolExecutor(2) as pool:
        bounds = pairwise((0, cut, ENTRIES))
        runs = [pool.submit(rank, n, *pair) for n, pair in enumerate(bounds)]
        (first, one), (second, two) = (run.result() for run in runs)
    tolerance: Any = {"rtol": 2e-2, "atol": 2e-2} if fp32 else {"rtol": 1e-4, "atol": 1e-5}
    for outputs in (first, second):
        torch.testing.assert_close(outputs.logprobs_M, whole.logprobs_M, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(outputs.entropies_M, whole.entropies_M, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one[0] + two[0], expected[0], **tolerance)
    torch.testing.assert_close(torch.cat([one[1], two[1]]), expected[1], **tolerance)
