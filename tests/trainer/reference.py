"""GRPO written out on plain transformers, one sequence at a time: what ours must equal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import pytest
import torch

from trimaran.clients import TrainAnswer
from trimaran.config import RunConfig
from trimaran.types import Completion, Group, Score, ScoredGroup, TrainingBatch


def sequence_logprobs(
    model: torch.nn.Module,
    prompt: Sequence[int],
    completion: Completion,
    temperature: float,
) -> torch.Tensor:
    """Of the sampled tokens, sequence by sequence."""
    parts = []
    for one in (completion, *completion.branches):
        ids = torch.tensor([[*prompt, *one.token_ids_T]])
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
        targets = torch.tensor([*one.token_ids_T])[:, None]
        logprobs = logits.log_softmax(-1).gather(-1, targets)[:, 0]
        parts += [logprobs[segment.start : segment.end] for segment in one.segments]
    return torch.cat(parts)


@torch.no_grad()
def with_rollout_logprobs(
    model: torch.nn.Module, batch: TrainingBatch, temperature: float
) -> TrainingBatch:
    """The batch as an engine with exactly these weights would have made it."""

    def fill(group: Group) -> Group:
        prompt = group.prompt_token_ids
        completions = tuple(
            with_logprobs(one, sequence_logprobs(model, prompt, one, temperature).tolist())
            for one in group.completions_G
        )
        return replace(group, completions_G=completions)

    groups = tuple(ScoredGroup(fill(one.group), one.verdicts_G) for one in batch.groups)
    return TrainingBatch(batch.step, groups)


def with_logprobs(completion: Completion, logprobs: Sequence[float]) -> Completion:
    """Of its sequences one after the other."""
    left = iter(logprobs)
    own, *branches = (
        tuple(islice(left, len(one.logprobs_S))) for one in (completion, *completion.branches)
    )
    of_branches = zip(completion.branches, branches, strict=True)
    return replace(
        completion,
        logprobs_S=own,
        branches=tuple(replace(branch, logprobs_S=found) for branch, found in of_branches),
    )


def logprobs_of(completion: Completion) -> torch.Tensor:
    """Those of the rollout."""
    sequences = (completion, *completion.branches)
    return torch.tensor([logprob for one in sequences for logprob in one.logprobs_S])


def loss_of(model: torch.nn.Module, batch: TrainingBatch, config: RunConfig) -> torch.Tensor:
    """On-policy GRPO with the token mean: ratio 1, importance weights against the rollout."""
    terms, num_tokens = [], 0
    for scored in batch.groups:
        rewards = [v.reward for v in scored.verdicts_G if isinstance(v, Score)]
        mean, spread = statistics.fmean(rewards), statistics.stdev(rewards)
        for one, verdict in zip(scored.group.completions_G, scored.verdicts_G, strict=True):
            if not isinstance(verdict, Score):
                continue
            advantage = (verdict.reward - mean) / (spread + 1e-4)
            logprobs = sequence_logprobs(
                model, scored.group.prompt_token_ids, one, config.rollout.temperature
            )
            old = logprobs.detach()
            weight = (old - logprobs_of(one)).exp().clamp(max=2.0)
            ratio = (logprobs - old).exp()
            terms.append(-(weight * ratio * advantage).sum())
            num_tokens += len(logprobs)
    return torch.stack(terms).sum() / num_tokens


class ReferenceTrainer:
    def __init__(self, model: torch.nn.Module, config: RunConfig) -> None:
        self.model, self.config = model, config
        section = config.trainer
        parameters = list(model.parameters())
        self._optimizer = torch.optim.AdamW(
            [
                {
                    "params": [p for p in parameters if p.ndim > 1],
                    "weight_decay": section.weight_decay,
                },
                {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
            ],
            lr=section.learning_rate,
            betas=(section.beta1, section.beta2),
            eps=section.epsilon,
        )

    def step(self, batch: TrainingBatch) -> tuple[float, float]:
        """Loss and gradient norm."""
        self._optimizer.zero_grad()
        loss = loss_of(self.model, batch, self.config)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.config.trainer.clip_grad
        )
        self._optimizer.step()
        return loss.item(), norm.item()

    def check(
        self,
        answer: TrainAnswer,
        batch: TrainingBatch,
        logprobs: float = 4e-6,
        loss: float = 2e-6,
    ) -> None:
        """Takes the step, too. `batch` has the log-probabilities of the model as it is: so does the answer,
        up to `logprobs` in the mean."""
        wanted, norm = self.step(batch)
        assert answer.metrics["trainer/computed/logprob_diff/mean"] < logprobs
        assert answer.metrics["trainer/loss"] == pytest.approx(wanted, abs=loss)
        assert answer.metrics["trainer/grad_norm"] == pytest.approx(norm, rel=1e-4)

    def first_moment(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """AdamW's: the mean of the gradients of all steps, of which later ones count more."""
        return self._optimizer.state[parameter]["exp_avg"]
