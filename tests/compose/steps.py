"""What the demo has to stand, one after another. Each step finds the run of the step before it."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.compose.images import PROJECT
from tests.compose.stack import Stack

START_SECONDS = 300.0
STEP_SECONDS = 240.0
LISTED = ("manager", "redis", "reward", "plugin", "weight-sync", "controller", "rollout", "trainer")
"""Those with a health check."""


def up(stack: Stack) -> None:
    """Every service is healthy, and the run that `submit` gave is under way."""
    stack.compose("up", "--detach", "--no-build")
    stack.wait_for(
        f"{', '.join(LISTED)} healthy",
        lambda: all(stack.health(service) == {"healthy"} for service in LISTED),
        START_SECONDS,
    )
    stack.wait_for("a run", lambda: stack.run().get("state") == "running", START_SECONDS)


def trains(stack: Stack) -> None:
    """Two steps, and Prometheus has the run's numbers."""
    stack.wait_for_steps(2, START_SECONDS)
    stack.wait_for("numbers of the run", lambda: bool(stack.query('up{job="trimaran"}==1')), 60)


def scale(stack: Stack) -> None:
    """`--scale rollout=4`: the run has four replicas, and goes on."""
    stack.compose("up", "--detach", "--no-build", "--no-recreate", "--scale", "rollout=4")
    four = {f"rollout-{index}" for index in range(4)}
    stack.wait_for("four replicas", lambda: four <= stack.answering(), START_SECONDS)
    stack.wait_for_steps(1, STEP_SECONDS)


def kill(stack: Stack) -> None:
    """SIGKILL to a replica, the reward service, the trainer and the controller, one after another."""
    for service in ("rollout", "reward", "trainer", "controller"):
        container = stack.containers(service)[0]
        stack.docker("kill", container)
        stack.docker("start", container)  # what a person killed, the engine leaves alone
        stack.wait_for_steps(1, STEP_SECONDS)


def pause(stack: Stack) -> None:
    """A replica that is frozen for a while: the run goes on, and it comes back."""
    container = stack.containers("rollout")[0]
    stack.docker("pause", container)
    try:
        stack.wait_for_steps(1, STEP_SECONDS)
    finally:
        stack.docker("unpause", container)
    stack.wait_for("healthy again", lambda: stack.health("rollout") == {"healthy"}, START_SECONDS)


def disconnect(stack: Stack) -> None:
    """A replica without a network for 20 s: the run goes on, and it comes back."""
    container = stack.containers("rollout")[0]
    network = f"{PROJECT}_inside"
    stack.docker("network", "disconnect", network, container)
    try:
        time.sleep(20)
        stack.wait_for_steps(1, STEP_SECONDS)
    finally:
        stack.docker("network", "connect", network, container)
    stack.wait_for("healthy again", lambda: stack.health("rollout") == {"healthy"}, START_SECONDS)


def drain(stack: Stack) -> None:
    """`docker stop`: a replica gives its groups away and ends with 0; the run goes on."""
    container = stack.containers("rollout")[-1]
    stack.docker("stop", "--time", "60", container)
    code = stack.inspect(container)["State"]["ExitCode"]
    if code != 0:
        raise AssertionError(f"the replica ended with {code} and not 0")
    stack.wait_for_steps(1, STEP_SECONDS)


def queues(stack: Stack) -> None:
    """A second run, as docs/deploy.md submits one, waits for the first."""
    stack.submit("/examples/addition/run.yaml", "run.steps=2", "validation.final_samples=1")

    def waits() -> bool:
        second, first = stack.runs()
        return first["state"] == "running" and "another run to end" in second["waiting_for"]

    stack.wait_for("a second run that waits for the first", waits, 60.0)


def ends(stack: Stack) -> None:
    """The first run succeeds, and then, with the same services, the second."""

    for number, what in ((1, "the first run's end"), (0, "the second run's end")):

        def has_ended(number: int = number) -> bool:
            return stack.runs()[number]["state"] == "succeeded"

        stack.wait_for(what, has_ended, 1200.0)


STEPS: tuple[Callable[[Stack], None], ...] = (
    *(up, trains, scale, kill, pause, disconnect, drain, queues, ends),
)
