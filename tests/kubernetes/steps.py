"""What the chart has to stand, one after another, on a node with NPUs that are only numbers."""

from __future__ import annotations

from collections.abc import Callable

from tests.kubernetes.release import Release

REPLICAS, RANKS = 2, 2
NEEDED = REPLICAS + RANKS


def _all_run(release: Release) -> bool:
    return (release.phases("rollout"), release.phases("trainer")) == (
        ["Running"] * REPLICAS,
        ["Running"] * RANKS,
    )


def install(release: Release) -> None:
    """Without devices: replicas and ranks are Pending, and the other services run."""
    release.install("install")
    for part in ("redis", "manager", "controller", "reward", "weight-sync"):
        release.wait_for(part, lambda part=part: release.phases(part) == ["Running"])
    assert release.phases("rollout") == ["Pending"] * REPLICAS
    assert release.phases("trainer") == ["Pending"] * RANKS


def devices(release: Release) -> None:
    """With NPUs on the node they run, and each rank has its number."""
    release.give_npus(NEEDED)
    release.wait_for("replicas and ranks", lambda: _all_run(release))
    names = {pod["metadata"]["name"] for pod in release.pods("trainer")}
    assert names == {f"demo-trainer-{rank}" for rank in range(RANKS)}


def kill(release: Release) -> None:
    """A pod of each kind is killed: another one comes in its place."""
    for part in ("rollout", "trainer", "manager", "redis"):
        before = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in release.pods(part)}
        uid, name = next(iter(before.items()))
        release.kubectl("delete", "pod", name, "--grace-period=0", "--force")

        def is_replaced(part: str = part, uid: str = uid, count: int = len(before)) -> bool:
            found = release.pods(part)
            return (
                len(found) == count
                and uid not in {pod["metadata"]["uid"] for pod in found}
                and set(release.phases(part)) == {"Running"}
            )

        release.wait_for(f"another {part}", is_replaced)


def upgrade(release: Release) -> None:
    """Another image of rollout and trainer, with the tokens of before, and no device more."""
    before = release.kubectl("get", "secret", "demo-services", "--output=jsonpath={.data}")
    release.install("upgrade", "--set=image.tagPrefix=v2-")
    release.wait_for(
        "the new image", lambda: release.image("rollout") == {"trimaran-rollout:v2-npu"}
    )
    release.wait_for("replicas and ranks", lambda: _all_run(release))
    after = release.kubectl("get", "secret", "demo-services", "--output=jsonpath={.data}")
    assert before == after


def rollback(release: Release) -> None:
    """The images of before are back."""
    release.helm("rollback", "1")
    release.wait_for("the old image", lambda: release.image("rollout") == {"trimaran-rollout:npu"})
    release.wait_for("replicas and ranks", lambda: _all_run(release))


STEPS: tuple[Callable[[Release], None], ...] = (install, devices, kill, upgrade, rollback)
