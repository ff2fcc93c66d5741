"""Checkpoints in a bucket: whole or not at all, pruned, and loaded by a host that has nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from services.trainer.checkpoints.checkpoint import Keep, TrainerState
from services.trainer.checkpoints.checkpoints import (
    BucketCheckpoints,
    LoadedCheckpoint,
    open_checkpoints,
)
from tests.bucket_server import Endpoint
from tests.trainer.batches import random_batch
from tests.trainer.checkpoints.test_checkpoint import LAYOUT, MODEL, tensors
from tests.trainer.conftest import MakeConfig
from tests.trainer.test_rank import save, started
from trimaran.errors import InputError, UnavailableError
from trimaran.host.places import Place, open_place
from trimaran.run.context import RunContext
from trimaran.run.place import bucket_of


@pytest.fixture
def place(bucket: Endpoint, tmp_path: Path) -> Place:
    return open_place(f"s3://payloads/{tmp_path.name}", "run.checkpoints")


def saved(place: Place, folder: Path, step: int, value: float, keep: int = 1) -> str:
    """By one rank on host a and one on host b."""
    hosts = [BucketCheckpoints(place, folder / host) for host in "ab"]
    digests = [
        host.write_shard(step, rank, tensors(value, rank)) for rank, host in enumerate(hosts)
    ]
    state = TrainerState(step, 0, step, f"{value}", {}, "", LAYOUT, MODEL, tuple(digests))
    return hosts[0].publish(state, Keep(keep))


def loaded(place: Place, host: Path, rank: int = 1) -> LoadedCheckpoint:
    found = BucketCheckpoints(place, host).load(LAYOUT, MODEL, rank)
    assert found is not None
    wanted = tensors(float(found.state.root), rank)
    assert all(torch.equal(found.shard[name], tensor) for name, tensor in wanted.items())
    return found


def test_a_host_that_has_nothing_loads_what_others_saved(place: Place, tmp_path: Path) -> None:
    assert BucketCheckpoints(place, tmp_path / "c").load(LAYOUT, MODEL, 0) is None
    where = saved(place, tmp_path, 5, 1.0)
    assert where == f"{place.url}/checkpoints/step-00005"
    found = loaded(place, tmp_path / "c")
    assert (found.state.step, found.place) == (5, where)
    saved(place, tmp_path, 6, 2.0)
    assert loaded(place, tmp_path / "c").state.step == 6


def test_older_ones_and_parts_of_given_up_saves_go(place: Place, tmp_path: Path) -> None:
    for step, value in ((1, 1.0), (2, 2.0), (3, 3.0)):
        saved(place, tmp_path, step, value, keep=2)
    BucketCheckpoints(place, tmp_path / "a").write_shard(4, 0, tensors(9.0, 0))  # never published
    saved(place, tmp_path, 3, 3.5, keep=2)  # once more, with other numbers
    steps = [name.split("/")[1] for name in place.sizes()]
    assert sorted(set(steps)) == ["step-00002", "step-00003"]
    assert len(steps) == 6
    assert loaded(place, tmp_path / "c").state.root == "3.5"
    for host in "ab":  # each has its newest part alone
        assert len(list((tmp_path / host).glob("checkpoints/*/*.safetensors"))) == 1


def test_it_is_no_checkpoint_while_a_part_is_missing(place: Place, tmp_path: Path) -> None:
    digest = BucketCheckpoints(place, tmp_path).write_shard(5, 0, tensors(1.0, 0))
    state = TrainerState(5, 0, 5, "1.0", {}, "", LAYOUT, MODEL, (digest, "0" * 32))
    with pytest.raises(UnavailableError, match="lacks checkpoints/step-00005/shard-1-0000"):
        BucketCheckpoints(place, tmp_path).publish(state, Keep(1))
    assert BucketCheckpoints(place, tmp_path).load(LAYOUT, MODEL, 0) is None


def test_a_damaged_copy_on_the_disk_is_fetched_again(place: Place, tmp_path: Path) -> None:
    saved(place, tmp_path, 5, 1.0)
    (part,) = (tmp_path / "b").glob("checkpoints/*/*.safetensors")
    part.write_bytes(part.read_bytes()[:-4] + b"!?!?")
    assert loaded(place, tmp_path / "b").state.step == 5


def test_a_damaged_or_lost_part_of_the_bucket_is_named(place: Place, tmp_path: Path) -> None:
    saved(place, tmp_path, 5, 1.0)
    name = next(name for name in place.sizes() if "shard-1" in name)
    data = place.read(name)
    place.write(data[:-4] + b"!?!?", name)
    with pytest.raises(InputError, match=rf"{place.url}/{name}: is damaged.*remove step-00005"):
        loaded(place, tmp_path / "c")
    place.delete([name])
    with pytest.raises(InputError, match=r"is not there, and state\.json beside it names it"):
        BucketCheckpoints(place, tmp_path / "d").load(LAYOUT, MODEL, 1)


def test_a_bucket_that_is_away_leaves_the_checkpoint_before(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(place, tmp_path, 5, 1.0)
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        away = open_place(place.url, "run.checkpoints", seconds=0.5)
    with pytest.raises(UnavailableError, match="see that the bucket is there"):
        saved(away, tmp_path, 6, 2.0)
    assert loaded(place, tmp_path / "a", 0).state.step == 5
    saved(place, tmp_path, 7, 3.0)
    assert loaded(place, tmp_path / "c").state.step == 7


@pytest.mark.usefixtures("single_rank", "bucket")
async def test_a_rank_goes_on_from_the_bucket_where_its_host_is_lost(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """To the roots that it reaches without a loss; its trained model lies in the bucket, too."""
    url = f"s3://payloads/{tmp_path.name}"
    config = make_config(run={"groups_per_step": 4, "checkpoints": url})
    run = RunContext.in_folder(tmp_path / "run")

    async def train(first: int, last: int) -> list[str]:
        async with started(config, run.folder) as rank:
            steps = [await rank.train(random_batch(step)) for step in range(first, last + 1)]
            await save(rank, last)
            await rank.export_model(rank.check_export("model"))
            return [answer.version.root for answer in steps]

    roots = await train(1, 2)
    shutil.rmtree(run.folder)
    roots += await train(3, 4)
    async with started(make_config(), tmp_path / "undisturbed") as rank:
        wanted = [(await rank.train(random_batch(step))).version.root for step in range(1, 5)]
    assert roots == wanted
    assert isinstance(
        open_checkpoints(config, run, bucket_of(config, run.run_id)), BucketCheckpoints
    )
    names = open_place(url, "URL").sizes("run/model")
    assert {"run/model/config.json", "run/model/trimaran-model.json"} <= names.keys()
