"""vLLM-Ascend's own samplers, cut out of its published archives: log-probabilities at the sampling
temperature once our worker extension has set their mode, and not before."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.rollout.vllm.worker import WorkerExtension
from tests.rollout.programs import ascend_module

pytestmark = pytest.mark.e2e

TEMPERATURE = 0.5


class NoDevice:
    """An NPU's streams, events and facts, of which there are none here."""

    def __call__(self, *_: Any) -> NoDevice:
        return self

    def __getattr__(self, name: str) -> Any:
        return type(self)() if not name.startswith("__") else object.__getattribute__(self, name)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def __contains__(self, _: object) -> bool:
        return False

    def __eq__(self, _: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


class TorchWithNpu:
    npu = NoDevice()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture(params=["0.23.0", "0.30.0rc2"])
def sampler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """As vLLM-Ascend's model runner makes it: without a mode."""
    tree = ascend_module(request.param, "vllm_ascend.sample.sampler")
    from vllm import envs
    from vllm.logger import init_logger
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.sample.sampler import Sampler

    # vLLM chooses the inner sampler's method by the platform, once, when it is made.
    def no(*_: Any) -> bool:
        return False

    npu = SimpleNamespace(is_cuda=no, is_cpu=no, is_xpu=no, is_rocm=no)
    monkeypatch.setattr(topk_topp_sampler, "current_platform", npu)
    imports = (ast.Import, ast.ImportFrom)
    names = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, imports)
        for alias in node.names
    }
    tree.body = [node for node in tree.body if not isinstance(node, imports)]
    config = SimpleNamespace(enable_reduce_sample=False, enable_async_exponential=False)
    space: dict[str, Any] = {name: NoDevice() for name in names} | {
        "torch": TorchWithNpu(),
        "envs": envs,
        "logger": init_logger("vllm"),
        "HAS_TRITON": False,
        "Sampler": Sampler,
        "TopKTopPSampler": topk_topp_sampler.TopKTopPSampler,
        "get_ascend_config": lambda: config,
    }
    exec(compile(tree, "sampler.py", "exec"), space)
    # Theirs orders an NPU's streams.
    space["random_sample"] = lambda probs, generators: probs.multinomial(1).view(-1)
    return space["AscendSampler"]()


def logprobs_at(sampler: Any, logits_BV: torch.Tensor, temperature: float) -> torch.Tensor:
    """Of the drawn tokens, [B], with what they should be."""
    metadata: Any = SimpleNamespace(
        temperature=torch.full((len(logits_BV),), temperature),
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=0,
        logprob_token_ids=None,
        no_penalties=True,
        output_token_ids=[],
        spec_token_ids=None,
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=SimpleNamespace(argmax_invariant=[], non_argmax_invariant=[]),
        thinking_budget_state_holder=None,
    )
    output = sampler(logits_BV.clone(), metadata)
    tokens_B1 = output.sampled_token_ids.long()
    found_B = output.logprobs_tensors.logprobs[:, 0]
    expected_BV = (logits_BV / temperature).log_softmax(-1)
    return torch.stack([found_B, expected_BV.gather(-1, tokens_B1)[:, 0]])


def test_raw_log_probabilities_before_and_right_ones_after_the_mode_is_set(sampler):
    torch.manual_seed(0)
    logits_BV = 2 * torch.randn(16, 50)
    found_B, expected_B = logprobs_at(sampler, logits_BV, TEMPERATURE)
    assert (found_B - expected_B).abs().max() > 0.5
    extension = WorkerExtension()
    extension.model_runner = SimpleNamespace(sampler=sampler)
    assert extension.report_processed_logprobs() == ""
    for temperature in (TEMPERATURE, 1.0, 2.0):
        found_B, expected_B = logprobs_at(sampler, logits_BV, temperature)
        assert torch.allclose(found_B, expected_B, atol=1e-5)


def test_samplers_without_a_mode_are_named():
    def missing(**attributes: Any) -> str:
        extension = WorkerExtension()
        extension.model_runner = SimpleNamespace(**attributes)
        return extension.report_processed_logprobs()

    inner = SimpleNamespace(logprobs_mode="raw_logprobs")
    assert "model_runner.sampler" in missing()
    assert "model_runner.sampler" in missing(sampler=SimpleNamespace(topk_topp_sampler=inner))
    raw = SimpleNamespace(logprobs_mode="raw_logprobs")
    assert "topk_topp_sampler" in missing(sampler=raw)
    # vLLM's second model runner: one sampler, which takes the mode of the engine's arguments.
    assert missing(sampler=SimpleNamespace(logprobs_mode="processed_logprobs")) == ""
