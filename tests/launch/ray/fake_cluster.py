"""Ray, as far as we call it, in this process: actors are plain objects, their services real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from trimaran.errors import UnavailableError
from trimaran.run.ray.cluster import ActorLostError, ActorSilentError, Node, Where

NODES = (
    Node("n1", "10.0.0.1", {"CPU": 4.0}),
    Node("n2", "10.0.0.2", {"CPU": 4.0}),
)


@dataclass(eq=False)
class FakeActor:
    name: str
    where: Where
    made: Future[Any]
    """The object; pending while there is no room."""
    is_dead: bool = False
    is_silent: bool = False


@dataclass
class FakeCluster:
    """Example: FakeCluster(NODES).actors["demo-1/reward/…"].is_silent = True"""

    known: Sequence[Node] = NODES
    has_room: bool = True
    is_away: bool = False
    """Its head, which knows the nodes."""
    address: str = "fake"
    own_node: str = "n1"
    actors: dict[str, FakeActor] = field(default_factory=dict)
    groups: dict[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    spread: set[str] = field(default_factory=set)
    """Names of groups that shall stand on many nodes."""
    given: list[tuple[Any, ...]] = field(default_factory=list)
    """What actors were made with: it would lie in Ray's own store."""
    is_connected: bool = False

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(16)

    def connect(self) -> None:
        self.is_connected = True

    def disconnect(self) -> None:
        self.is_connected = False

    def nodes(self) -> list[Node]:
        if self.is_away:
            raise UnavailableError("Ray cannot answer")
        return list(self.known)

    def make(self, actor: type[Any], name: str, where: Where, *arguments: Any) -> FakeActor:
        self.given.append((name, where, *arguments))
        made: Future[Any] = Future()
        if self.has_room:
            made.set_result(actor(*arguments, leave=lambda: None))
        self.actors[name] = FakeActor(name, where, made)
        return self.actors[name]

    def call(self, actor: FakeActor, method: str, *arguments: Any) -> Future[Any]:
        def work() -> Any:
            made = actor.made.result()
            if actor.is_dead:
                raise ActorLostError(actor.name)
            if actor.is_silent:
                raise ActorSilentError(actor.name)
            return getattr(made, method)(*arguments)

        return self._threads.submit(work)

    def node_of(self, actor: FakeActor) -> Future[str]:
        def work() -> str:
            actor.made.result()
            return actor.where.node_id or self.own_node

        return self._threads.submit(work)

    def kill(self, actor: FakeActor) -> None:
        """What it has started ends with it."""
        if actor.made.done() and not actor.is_dead:
            actor.made.result().close()
        if not actor.made.done():
            actor.made.set_exception(ActorLostError(actor.name))
        actor.is_dead = True
        self.actors.pop(actor.name, None)

    def find(self, prefix: str) -> dict[str, FakeActor]:
        return {name: actor for name, actor in self.actors.items() if name.startswith(prefix)}

    def reserve(
        self,
        name: str,
        bundles: Sequence[Mapping[str, float]],
        labels: Mapping[str, str],
        is_spread: bool = False,
    ) -> str:
        self.groups[name] = bundles
        if is_spread:
            self.spread.add(name)
        return name

    def release(self, prefix: str) -> None:
        self.groups = {n: b for n, b in self.groups.items() if not n.startswith(prefix)}
