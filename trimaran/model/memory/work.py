"""How long the answers of a run may be, and so what a micro-batch holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.config import RunConfig


def shares_prompt(prompt: int, completions: Sequence[int], pair_cost: float) -> bool:
    """Whether the attention of a group costs less where its prompt serves all completions than as whole
    sequences, counted in pairs of a query and a key (services/trainer/megatron/attention/segments.py). In tokens.

    `pair_cost`: of a pair with a shared prompt, in pairs of whole sequences.
    """
    inputs = [one for one in completions if one]
    whole = sum((prompt + one) ** 2 / 2 for one in inputs)
    parts = sum(one * (prompt + one / 2) for one in inputs)
    return prompt > 0 and prompt**2 / 2 + pair_cost * parts < whole


@dataclass(frozen=True, slots=True)
class Work:
    """Groups of completions behind one prompt each, all of their greatest length; in tokens.

    Example: Work(prompt=72, completion=24, group=8, groups=8).group_tokens == 72 + 8 * 23
    """

    prompt: int
    completion: int
    group: int
    """Completions of a prompt; of episodes, all sequences."""
    groups: int = 1
    """Groups of one update on one data-parallel rank."""

    @property
    def group_tokens(self) -> int:
        """Packed: the prompt stands there once, and nothing follows a completion's last token, which
        therefore is no input (services/trainer/step/packing.py)."""
        return self.prompt + self.group * (self.completion - 1)

    @property
    def batch_tokens(self) -> int:
        """Packed tokens of one update on one data-parallel rank."""
        return self.groups * self.group_tokens

    @property
    def sequence(self) -> int:
        """Tokens that one completion's attention sees."""
        return self.prompt + self.completion - 1

    @property
    def rows(self) -> float:
        """In attention, for each packed token: there the prompt is copied for each completion."""
        return self.group * self.sequence / self.group_tokens

    def shares_prompt(self, pair_cost: float) -> bool:
        """Whether the attention computes a prompt once for all its completions."""
        return shares_prompt(self.prompt, (self.completion - 1,) * self.group, pair_cost)

    @property
    def trained(self) -> float:
        """Share of the packed tokens that have a log-probability."""
        return self.group * self.completion / self.group_tokens

    @property
    def smallest(self) -> int:
        """Tokens of the least micro-batch that holds every piece: one completion, or what fits into
        twice its prompt, whatever `trainer.micro_batch_tokens` says."""
        return max(self.sequence, min(2 * self.prompt, self.group_tokens))

    def tokens_of(self, micro_batch_tokens: int) -> int:
        """The largest micro-batch under that limit."""
        return min(max(micro_batch_tokens, self.smallest), self.batch_tokens)


ANSWER_BYTES, TOKEN_BYTES = 64 << 10, 128
"""On the host, of an answer under way and of each of its tokens, in the rollout, the controller, the reward
service and the trainer together: more than the 11 KiB and 92 bytes of runs of 8,192 answers and of 420 tokens."""


def answer_bytes(config: RunConfig, replicas: int) -> int:
    """What all answers that are under way at a time take on the host, with so many replicas."""
    work, rollout, section = work_of(config), config.rollout, config.validation
    slots = (config.run.max_lag + 1) * config.run.groups_per_step
    sequences = config.max_sequences
    trained = slots * (work.group + config.algorithm.needs_greedy * sequences)
    size = ANSWER_BYTES + TOKEN_BYTES * (work.prompt + work.completion)
    if not config.data.validation:
        return trained * size
    samples = 1 + max(section.samples, section.final_samples)
    held_out = 2 * (replicas * rollout.max_concurrency + samples) * sequences
    longest = work.prompt + config.max_held_out_tokens
    return trained * size + held_out * (ANSWER_BYTES + TOKEN_BYTES * longest)


def work_of(config: RunConfig) -> Work:
    """The longest that a run's limits allow."""
    rollout, layout = config.rollout, config.trainer.layout
    parts = config.algorithm.updates_per_batch * layout.data
    return Work(
        prompt=rollout.max_prompt_tokens,
        completion=config.max_trained_tokens,
        group=rollout.group_size * config.max_sequences,
        groups=max(config.run.groups_per_step // parts, 1),
    )
