"""The next version with the weights of the one before: a step that changed nothing is published too."""

import pytest

from tests.weight_sync.ends import ALL, snapshot_of
from tests.weight_sync.fakes import CALLER
from tests.weight_sync.test_coordinator import names, running, until
from tests.weight_sync.test_together import HALVES, config_of
from tests.weight_sync.test_together import make as make
from weights.version.manifest import list_digests


@pytest.mark.parametrize("delta", [False, True], ids=["whole", "delta"])
@pytest.mark.parametrize("shares", [(ALL,), HALVES], ids=["one sender", "two senders"])
@pytest.mark.parametrize("transport", ["auto", "collective", "relay"])
async def test_the_same_weights_go_live_under_the_next_number(
    make, tmp_path, transport, shares, delta
):
    config = config_of(transport, delta=delta)
    together = make(config, shares, keep_delta=delta)

    def train_nothing():
        """As a trainer whose update was left out: a new version, a new snapshot, the same root."""
        training = together.training
        training.step += 1
        digests = dict(enumerate(list_digests(snapshot_of(training.values).manifest)))
        for rank in together.ranks:
            rank.take(digests)
        return training.version

    async with running(together.world, tmp_path, config) as coordinator:
        for name in "abc":
            await together.register(coordinator, name)
        await together.publish(coordinator)
        for _ in range(2):
            await until(lambda: names(coordinator) == ["a", "b", "c"])
            version = train_nothing()
            await coordinator.publish(CALLER, version)
            together.check()
            assert all(r.live.version == version.version for r in together.replicas.values())
        await together.publish(coordinator)
        assert names(coordinator) == ["a", "b", "c"]
    together.check()
