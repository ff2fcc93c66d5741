"""The section `environment`: episodes of several turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, model_validator

from trimaran.config.reward import PluginSection
from trimaran.config.section import Section
from trimaran.config.values import MAX_PROCESSES, Positive, Seconds


class McpSection(Section):
    """A server of tools by the Model Context Protocol; give one of command and url."""

    command: tuple[str, ...] = ()
    """Starts it, for each episode: it speaks over its standard input and output."""
    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")] | None = None
    tools: tuple[str, ...] = ()
    """Those of its tools that the policy may call; all where none is named."""

    @model_validator(mode="after")
    def _one_way(self) -> McpSection:
        if bool(self.command) == bool(self.url):
            raise ValueError("give one of command and url")
        return self


class AgentSection(Section):
    """A program that speaks to an OpenAI-compatible endpoint: its requests are what the policy sees."""

    command: tuple[str, ...] = ()
    """Started for each episode. Empty: it is started elsewhere, and asks with the episode's key."""
    network: bool = False
    """Whether the program may reach more than the endpoint."""


class EnvironmentSection(Section):
    """What answers the policy, turn by turn; docs/agents.md. `environment: {tools: ["tools.py:add"], max_turns: 4}`"""

    tools: tuple[str, ...] = ()
    """Python functions with type hints and docstrings, or verl's tool classes: path/to/file.py:name or
    package.module:name; only what the operator allowed."""
    mcp: tuple[McpSection, ...] = ()
    python: bool = False
    """A tool `python` that runs a program in the sandbox and answers what it printed."""
    factory: str | None = None
    """A class with reset(row) and step(message), or of TRL's or verl's form; named as `tools` are."""
    plugin: PluginSection | None = None
    """An environment over HTTP."""
    openenv: Annotated[str, Field(pattern=r"^wss?://[^\s/?#@]+(/[^\s?#]*)?$")] | None = None
    """The ws:// or wss:// address of an OpenEnv server."""
    agent: AgentSection | None = None
    installed: str | None = None
    """The name under which an installed package has registered an environment."""
    options: Mapping[str, JsonValue] = Field(default_factory=dict)
    """Given to the class as keyword arguments, and to a plugin with each episode. With `tools`: the name of a
    verl class there, without its module -> its `config` and `tool_schema`."""

    replicas: Positive = 1
    """Processes of the service, each with its own environments."""
    max_episodes: Annotated[int, Field(ge=1, le=MAX_PROCESSES)] = 64
    """Episodes that one replica holds at a time; those that run Python have a process each."""
    timeout: Seconds = 30
    """One step; an environment over it is ended, and its episode made again."""
    memory_mib: Annotated[int, Field(ge=256, le=1 << 26)] = 1024
    """Address space of one process of an environment."""
    max_message_chars: Positive = 65536
    """Of what a step answers; a tool's longer answer is cut, and says so."""

    max_turns: Positive = 8
    """The policy's, of one episode."""
    max_tokens: Positive = 4096
    """Tokens of one episode behind its prompt, sampled and given. rollout.max_tokens bounds one turn."""
    history: Literal["exact", "template"] = "exact"
    """exact: what was sampled stays as it is. template: earlier turns are rendered as the chat template
    would; an episode whose history that rewrites becomes several sequences."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that end a turn, beside the model's own end."""
    tool_format: str = "auto"
    """How the model writes a call; auto: as its chat template asks for. docs/agents.md lists them."""
    weight: float = 1.0
    """Of the environment's reward, beside reward.rules."""
    reward: Literal["sum", "last"] = "sum"
    """Of the rewards of an episode's steps."""

    @property
    def kind(self) -> str:
        """Which of the ways is named: tools, factory, plugin, openenv, agent or installed."""
        return next(name for name, given in self._ways() if given)

    @property
    def num_processes(self) -> int:
        """In which the run's own code or programs play, at a time and at most."""
        return 0 if self.kind in ("plugin", "openenv") else self.replicas * self.max_episodes

    def _ways(self) -> tuple[tuple[str, Any], ...]:
        has_tools = bool(self.tools or self.mcp or self.python)
        others = ("factory", "plugin", "openenv", "agent", "installed")
        return (("tools", has_tools), *((name, getattr(self, name)) for name in others))

    @model_validator(mode="after")
    def _one_way(self) -> EnvironmentSection:
        if sum(bool(given) for _, given in self._ways()) != 1:
            raise ValueError(
                "give one of tools (with mcp and python), factory, plugin, openenv, agent and installed"
            )
        return self
