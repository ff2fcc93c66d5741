"""The section `reward`: rules, functions and plugins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from trimaran.config.section import Section
from trimaran.config.values import MAX_PROCESSES, Positive, Seconds


class PluginSection(Section):
    """How a plugin over HTTP is called. docs/reward-plugins.md and docs/environment-plugins.md give the
    contracts."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")]
    """Only hosts that the operator allowed are called."""
    protocol: Literal["trimaran", "sandbox_fusion"] = "trimaran"
    token_variable: Annotated[str, Field(pattern=r"^TRIMARAN_[A-Z0-9_]+$")] | None = None
    """Environment variable of the service that calls it, which holds the bearer token."""
    ca_file: Path | None = None
    """Certificates that https trusts; the system's where it is not given."""
    timeout: Seconds = 30
    """One group of a reward, or one step of an episode: all its calls and their tries together."""
    attempts: Positive = 3
    batch_size: Annotated[int, Field(ge=1, le=1000)] = 64
    """Completions of one call. An environment has one episode a call."""
    max_concurrency: Positive = 8
    """Calls under way at a time; of an environment, environment.max_episodes says it."""


class RuleSection(Section):
    """One term of the reward. Its key is the rule's name, unless one of these names another:

    rules: {gsm8k: 1.0, style: {weight: 0.2, function: "style.py:score"}}
    """

    weight: float = 1.0
    tasks: tuple[str, ...] = ()
    """It judges answers to prompts of these tasks (`data.task`, or a dataset's own), and no others; of all
    tasks where none is named."""
    rule: str | None = None
    """A built-in rule; docs/rewards.md lists them."""
    function: str | None = None
    """path/to/file.py:name or package.module:name; only what the operator allowed."""
    plugin: PluginSection | None = None
    options: Mapping[str, JsonValue] = Field(default_factory=dict)
    """Given to the rule or function as keyword arguments."""
    minimum: float | None = None
    """For a function: what an indigestible answer gets, and the least value that is believed; 0 where
    it is not given. Of a plugin: the latter, where it does not say it itself."""
    maximum: float | None = None

    def is_for(self, task: str) -> bool:
        return not self.tasks or task in self.tasks

    @model_validator(mode="after")
    def _one_source(self) -> RuleSection:
        if sum(source is not None for source in (self.rule, self.function, self.plugin)) > 1:
            raise ValueError("give one of rule, function and plugin")
        return self


def _weight_alone(value: Any) -> Any:
    return {"weight": value} if isinstance(value, int | float | str) else value


class RewardSection(Section):
    """What judges answers; docs/rewards.md. `reward: {rules: {gsm8k: 1.0}, workers: 4}`"""

    rules: Mapping[str, Annotated[RuleSection, BeforeValidator(_weight_alone)]] = Field(
        default_factory=dict
    )
    """Term -> weight, or a section with more to say; the reward is the weighted sum."""
    workers: Annotated[int, Field(ge=1, le=MAX_PROCESSES)] = 2
    """Processes in which rules and functions run."""
    timeout: Seconds = 10
    """One completion, one rule; a worker over it is killed."""
    memory_mib: Annotated[int, Field(ge=256, le=1 << 26)] = 4096
    """Address space of one worker; a checker that wants more is stopped."""
    max_faulted_share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """A share of the last answers; above it the run pauses instead of learning from noise."""
    pause_timeout: Seconds = 3600
    """A run that is paused for longer fails, and can be resumed."""
