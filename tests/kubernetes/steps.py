"""What the chart has to stand, one after another, on a node with NPUs that are only numbers.

Each step finds the release and the run of the step before it, and returns figures for the record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kubernetes.images import NAME as IMAGES
from tests.kubernetes.images import NEXT, VERSION
from tests.kubernetes.release import NAME, Release

REPLICAS, RANKS = 2, 2
CONTROL = ("redis", "manager", "controller", "reward", "weight-sync", "plugin")
COMPUTE = {"rollout": REPLICAS, "trainer": RANKS}
RUN = {
    "run.steps": "9000",  # until `ends`
    "run.checkpoint_every": "5",
    "run.payload_quota_gib": "0.2",
    "model.path": "/models/tiny",
    "data.train": "/examples/tiny/train.jsonl",
    "data.validation": "/examples/tiny/heldout.jsonl",
    "rollout.max_replicas": str(REPLICAS + 1),
    "trainer.data_parallel": str(RANKS),
}
HOSTS = 2
ON_HOSTS = RUN | {
    "rollout.engine": "vllm",
    "rollout.kv_cache_gib": "0.05",
    "rollout.tensor_parallel": str(HOSTS),
    "rollout.hosts": str(HOSTS),
    "rollout.replicas": "1",
    "rollout.max_replicas": "1",
}
Figures = dict[str, Any] | None


def install(release: Release) -> Figures:
    """Without devices: replicas and ranks are Pending, and the other services are ready."""
    release.install("install")
    for part in CONTROL:
        release.wait_for(f"{part} ready", lambda part=part: release.is_ready(part))
    assert release.phases("rollout") == ["Pending"] * REPLICAS
    assert release.phases("trainer") == ["Pending"] * RANKS


def devices(release: Release) -> Figures:
    """With NPUs on the node they run, and each rank has its number."""
    release.give_npus(REPLICAS + RANKS)
    for part, count in COMPUTE.items():
        release.wait_for(part, lambda part=part, count=count: release.is_ready(part, count))
    names = {pod["metadata"]["name"] for pod in release.pods("trainer")}
    assert names == {f"{NAME}-trainer-{rank}" for rank in range(RANKS)}


def trains(release: Release) -> Figures:
    """A run is submitted in the manager's pod, and makes ten steps."""
    words = [f"{key}={value}" for key, value in RUN.items()]
    release.trimaran("submit", "/examples/tiny/run.yaml", *words)
    release.wait_for("a run", lambda: release.run().get("state") == "running")
    return {"ten steps": release.wait_for_steps(10)}


def scale(release: Release) -> Figures:
    """`kubectl scale` to three replicas: the third is Pending until there is an NPU, then in the run."""
    count = REPLICAS + 1
    release.kubectl("scale", f"deployment/{NAME}-rollout", f"--replicas={count}")
    expected = ["Pending", *["Running"] * REPLICAS]
    release.wait_for("one Pending", lambda: release.phases("rollout") == expected)
    release.give_npus(count + RANKS)
    release.wait_for("three replicas", lambda: release.is_ready("rollout", count))
    release.wait_for_steps()
    release.kubectl("scale", f"deployment/{NAME}-rollout", f"--replicas={REPLICAS}")
    release.wait_for("two replicas", lambda: release.is_ready("rollout", REPLICAS))
    release.wait_for_steps()


def kill(release: Release) -> Figures:
    """A pod of each kind is killed: seconds until another one is ready, and until a further step."""
    counts = dict.fromkeys(CONTROL, 1) | COMPUTE
    return {"killed": {part: _kill(release, part, count) for part, count in counts.items()}}


def _kill(release: Release, part: str, count: int, number: int = 0) -> dict[str, float]:
    pod = release.pods(part)[number]
    uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
    release.kubectl("delete", "pod", name, "--grace-period=0", "--force")

    def is_replaced() -> bool:
        uids = {other["metadata"]["uid"] for other in release.pods(part)}
        return uid not in uids and release.is_ready(part, count)

    ready = release.wait_for(f"another {part}", is_replaced)
    return {"ready": ready, "step": round(ready + release.wait_for_steps(), 1)}


def upgrade(release: Release) -> Figures:
    """Images under another tag everywhere, which hold the same, with the tokens of before and no device more: the run goes on."""
    before = _secrets(release)
    release.install("upgrade", f"--set=image.version={NEXT}")
    seconds = _wait_for_images(release, NEXT)
    assert _secrets(release) == before
    return {"ready": seconds, "step": release.wait_for_steps()}


def rollback(release: Release) -> Figures:
    """The tags of before are back, and the run goes on."""
    before = _secrets(release)
    release.helm("rollback", "1")
    seconds = _wait_for_images(release, VERSION)
    assert _secrets(release) == before
    return {"ready": seconds, "step": release.wait_for_steps()}


def _secrets(release: Release) -> list[Any]:
    return [
        secret["data"] for secret in release.get("secrets", "--selector=app.kubernetes.io/name")
    ]


def _wait_for_images(release: Release, version: str) -> float:
    expected = {"manager": ("control", 1), "controller": ("control", 1)} | {
        part: (part, count) for part, count in COMPUTE.items()
    }

    def are_there() -> bool:
        return all(
            release.images(part) == {f"{IMAGES}-{kind}:{version}-cpu"}
            and release.is_ready(part, count)
            for part, (kind, count) in expected.items()
        )

    return release.wait_for(f"images {version}-cpu", are_there, 600)


def ends(release: Release) -> Figures:
    """The run is cancelled; a short one after it succeeds on the same pods."""
    release.trimaran("cancel", release.run()["run_id"])
    release.wait_for("the end", lambda: release.run().get("state") == "cancelled")
    words = [f"{key}={value}" for key, value in (RUN | {"run.steps": "5"}).items()]
    release.trimaran("submit", "/examples/tiny/run.yaml", *words)
    seconds = release.wait_for("the end", lambda: release.run().get("state") == "succeeded")
    return {"five steps": seconds}


def hosts(release: Release) -> Figures:
    """One replica of vLLM as a set of two pods: a run makes steps, also after either of the two was killed."""
    values = f"rollout.hosts={HOSTS},rollout.devices={HOSTS},rollout.replicas=1"
    release.install("upgrade", f"--set={values}")
    names = {f"{NAME}-rollout-{number}" for number in range(HOSTS)}

    def is_there() -> bool:
        return release.is_ready("rollout", HOSTS) and names == {
            pod["metadata"]["name"] for pod in release.pods("rollout")
        }

    release.wait_for("a set", is_there)
    release.wait_for("the manager", lambda: release.is_ready("manager"))
    former = release.run().get("run_id")
    release.trimaran(
        "submit", "/examples/tiny/run.yaml", *(f"{k}={v}" for k, v in ON_HOSTS.items())
    )
    release.wait_for(
        "a run",
        lambda: (run := release.run()).get("run_id") != former and run.get("state") == "running",
    )
    steps = release.wait_for_steps(2)
    killed = {
        one: _kill(release, "rollout", HOSTS, number)
        for number, one in enumerate(("rollout-0", "follower-0"))
    }
    release.trimaran("cancel", release.run()["run_id"])
    release.wait_for("the end", lambda: release.run().get("state") == "cancelled")
    return {"two steps": steps, "killed": killed}


def uninstall(release: Release) -> Figures:
    """Nothing stays but the claims, with the results of runs and Redis' data."""
    release.helm("uninstall", "--wait")
    kinds = "all,secrets,configmaps,networkpolicies,poddisruptionbudgets,persistentvolumeclaims"

    def left() -> set[str]:
        objects = release.get(kinds, f"--selector=app.kubernetes.io/instance={NAME}")
        return {f"{one['kind']} {one['metadata']['name']}" for one in objects}

    claims = {f"PersistentVolumeClaim {name}" for name in (f"{NAME}-runs", f"data-{NAME}-redis-0")}
    release.wait_for("nothing but claims", lambda: left() == claims)


STEPS: tuple[Callable[[Release], Figures], ...] = (
    *(install, devices, trains, scale, kill, upgrade, rollback, ends, hosts, uninstall),
)
