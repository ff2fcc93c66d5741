"""The section `rollout`: replicas and their engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field, model_validator

from trimaran.choices import ENGINES
from trimaran.config.section import Section
from trimaran.config.values import Devices, Eager, Positive, Seconds, Threads
from trimaran.host.device import DeviceName


class RolloutSection(Section):
    """How completions are made. `rollout: {replicas: 2, group_size: 8, max_tokens: 256}`"""

    engine: Annotated[str, AfterValidator(ENGINES.check)] = "vllm"
    """vllm or transformers, or the name of an installed package's engine; docs/extending.md."""
    replicas: Positive = 1
    """At least so many: the run starts with them."""
    max_replicas: Positive = 1
    """At most so many; `replicas` where it is not given. More are started while devices are idle."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Labels of the pool of devices on which replicas are placed; only the manager reads them."""
    device: DeviceName = "auto"
    devices: Devices = "auto"
    """Numbers (of GPUs: or UUIDs) of replicas x tensor_parallel devices, the first replica's first; or auto: those in
    sight that the trainer leaves, in order. docs/architecture.md has the rules (Devices)."""
    threads: Threads = 1
    """CPU threads of one replica."""
    tensor_parallel: Positive = 1
    hosts: Positive = 1
    """Hosts of one replica: tensor_parallel / hosts devices on each. Above 1 with vllm, `--launcher ray` or
    services that are started on their hosts; docs/deploy.md."""
    group_size: Positive = 8
    """Completions of a prompt; 1 where the advantage compares no group."""
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    max_tokens: Positive = 1024
    max_prompt_tokens: Positive = 1024
    """A longer prompt is skipped, counted and reported. Each place of an image counts."""
    limit_images: Positive = 4
    """Images of one prompt, of a model that takes any."""
    max_concurrency: Positive = 64
    """Completions that one replica decodes at the same time."""
    kv_cache_gib: Annotated[float, Field(gt=0, le=65536)] = 1
    """Room for keys and values on the CPU."""
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Share of an accelerator's memory for weights, keys and values."""
    prefix_cache: bool = True
    """vLLM computes a prompt once for all its completions, and what prompts begin with alike once."""
    eager: Eager = "auto"
    """vLLM without captured graphs. auto: with them on cuda only. The probe at the start checks
    that they follow a load of weights; they did on an H100. No NPU has been tried."""
    idle_timeout: Seconds = 60
    """Longest silence of a Generate stream before the group is tried elsewhere."""

    @model_validator(mode="before")
    @classmethod
    def _as_many_as_replicas(cls, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        branch = cast(dict[str, Any], tree)
        replicas = branch.get("replicas")
        # One that is no number is one fault, not two.
        return {"max_replicas": replicas, **branch} if type(replicas) is int else branch

    @model_validator(mode="after")
    def _same_on_each_host(self) -> RolloutSection:
        if self.tensor_parallel % self.hosts:
            raise ValueError(
                f"hosts ({self.hosts}) must divide tensor_parallel ({self.tensor_parallel}): each host"
                " of a replica has as many of its devices"
            )
        return self

    @property
    def devices_on_host(self) -> int:
        """Devices of one replica on each of its hosts."""
        return self.tensor_parallel // self.hosts

    @property
    def num_followers(self) -> int:
        """Processes of one replica beside the first, one on each further host."""
        return self.hosts - 1

    @model_validator(mode="after")
    def _at_least_replicas(self) -> RolloutSection:
        if self.max_replicas < self.replicas:
            raise ValueError(
                f"max_replicas ({self.max_replicas}) must not be less than replicas"
                f" ({self.replicas})"
            )
        return self
