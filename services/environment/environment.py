"""What an environment is to the service, and who makes one for each episode.

    Open ──▶ EnvironmentHost.create ──▶ Environment.open ──▶ first messages, tools
    Step ──▶ Environment.step ──▶ messages, reward, end
    Close ─▶ Environment.close

What fails in the world, such as a tool that raises, is a message to the policy. What fails of ours, such as
a process that died or a server that is away, is raised: the controller makes the episode again elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self, runtime_checkable

from trimaran.types import Message, Opening, Prompt, Reply, Usage


class EpisodeEnvironment(Protocol):
    """One episode's world, in the service's event loop, which its methods do not block.

    The service calls one method at a time, `close` once at the end, also after a failure and beside a call that
    hangs, which it has cancelled.

    Example: a world that ends at once

        class Echo(Environment):
            async def open(self, prompt: Prompt, seed: int) -> Opening:
                return Opening(prompt.messages)

            async def step(self, message: Message, finish_reason: str) -> Reply:
                return Reply(reward=float(message.text == "hello"), done=True)

            async def close(self) -> None: ...
    """

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        """`seed`: the same for all episodes of a group. Raises TrimaranError for a fault of ours."""
        ...

    async def step(self, message: Message, finish_reason: str) -> Reply:
        """`finish_reason` of the turn: "stop" or "length". Raises TrimaranError for a fault of ours."""
        ...

    async def close(self) -> None:
        """Ends what the episode has started."""
        ...


@runtime_checkable
class TakesUsage(Protocol):
    """An environment that wants to know how many tokens a turn took."""

    usage: Usage
    """Of the turn with which `step` is called; set before."""


@runtime_checkable
class HasProcesses(Protocol):
    """A host that plays in processes of its own."""

    @property
    def num_processes(self) -> Mapping[str, float]:
        """By what they do: busy or idle."""
        ...


class EnvironmentHost(Protocol):
    """Makes the environments of one kind; an async context manager that owns what they share."""

    async def __aenter__(self) -> Self:
        """Raises InputError for what the configuration names and cannot be used."""
        ...

    async def __aexit__(self, *_: object) -> None: ...

    def create(self, episode: str) -> EpisodeEnvironment:
        """The world of one episode. `episode`: its name, as in OpenRequest."""
        ...
