"""What a host lacks for a service is one line that names the process, the host and the remedy."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from collections import namedtuple
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from commands.cli.train import host_checks
from commands.cli.train.host_checks import prepare_host
from commands.cli.train.preflight import show_errors
from tests.bucket_server import Endpoint, served
from tests.tiny_model import write_tiny_model
from trimaran.config import RunConfig, parse_config
from trimaran.errors import InputError, UnavailableError
from trimaran.host.lifetime import PARENT_VARIABLE
from trimaran.host.places import FolderPlace
from trimaran.model.folder import read_model_folder
from trimaran.run.agreement import forget_model
from trimaran.run.context import RunContext
from trimaran.store import open_store

HOST = socket.gethostname()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("host-models") / "tiny")


@pytest.fixture(scope="module")
def bucket() -> Iterator[Endpoint]:
    with served() as endpoint:
        yield endpoint


class Site:
    """Two hosts with one store: a folder each, and a copy of the model each."""

    def __init__(self, folder: Path, tiny: Path) -> None:
        self.store_url = f"sqlite:{folder / 'store.sqlite'}"
        self.hosts = {name: folder / name for name in ("a", "b")}
        for host in self.hosts.values():
            shutil.copytree(tiny, host / "tiny")
            (host / "run").mkdir()
        self.data = folder / "train.jsonl"
        self.data.write_text('{"prompt": "1 + 1 = ?", "answer": "2"}\n')

    def config(self, host: str, **sections: Any) -> RunConfig:
        tree: dict[str, Any] = {
            "model": {"path": str(self.hosts[host] / "tiny")},
            "data": {"train": str(self.data)},
            "reward": {"rules": {"gsm8k": 1.0}},
            "rollout": {"max_tokens": 12, "max_prompt_tokens": 64},
        }
        for name, values in sections.items():
            tree[name] = tree.get(name, {}) | values
        return parse_config(tree)

    def start(self, name: str, host: str, **sections: Any) -> RunConfig:
        kind, _, index = name.partition("-")
        run = RunContext("demo", self.hosts[host] / "run", self.store_url)
        return asyncio.run(prepare_host(kind, int(index or 0), self.config(host, **sections), run))

    async def launch(self) -> None:
        store = await open_store(self.store_url)
        await forget_model(store, "demo")
        await store.close()

    async def forget_place(self) -> None:
        store = await open_store(self.store_url)
        await store.delete("place/demo")
        await store.close()


@pytest.fixture
def site(tmp_path: Path, tiny: Path) -> Site:
    return Site(tmp_path, tiny)


def edit_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_hosts_that_have_all_start(site: Site) -> None:
    places = {
        "run": {"checkpoints": str(site.data.parent / "shared")},
        "trainer": {"data_parallel": 2},
    }
    for name, host in (("trainer-0", "a"), ("trainer-1", "b"), ("rollout-0", "b")):
        assert site.start(name, host, **places).model.path == site.hosts[host] / "tiny"
    for name in ("controller", "reward"):
        site.start(name, "b", **places)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_another_model_beside_equal_weights_is_found(site: Site, name: str) -> None:
    edit_json(site.hosts["b"] / "tiny" / name, _added="a template that no other host has")
    site.start("trainer-0", "a")
    with pytest.raises(InputError) as raised:
        site.start("rollout-1", "b")
    line = f"rollout-1 on {HOST}: model.path: {site.hosts['b']}/tiny is not what trainer-0 on {HOST} had"
    assert str(raised.value).startswith(f"{line}, by its {name}; give every host the same one")
    # Once it is fixed another launch begins again, whichever was wrong.
    asyncio.run(site.launch())
    site.start("rollout-1", "b")
    with pytest.raises(InputError, match=f"trainer-0 on {HOST}: .* is not what rollout-1"):
        site.start("trainer-0", "a")


def test_a_host_without_the_model_or_with_another_source_is_named(site: Site) -> None:
    shutil.rmtree(site.hosts["b"] / "tiny")
    with pytest.raises(InputError, match=rf"rollout-0 on {HOST}: model\.path: .* is not a folder"):
        site.start("rollout-0", "b")
    with pytest.raises(
        InputError, match=r"model\.source: /never/trimaran-model\.json: is not there"
    ):
        site.start("rollout-0", "b", model={"source": "/never"})


def test_the_controllers_host_needs_the_data_and_keeps_them(site: Site) -> None:
    site.start("controller", "a")
    site.data.write_text('{"prompt": "1 + 1 = ?", "answer": "3"}\n')
    with pytest.raises(
        InputError, match=rf"is not what controller on {HOST} had, by its .*/train.jsonl"
    ):
        site.start("controller", "b")
    site.data.write_text('{"prompt": "1 + 1 = ?", "answer": "three"}\n')
    with pytest.raises(InputError, match=r"train\.jsonl:1"):  # its rule cannot work with it
        site.start("controller", "b")
    site.data.unlink()
    with pytest.raises(InputError, match=f"controller on {HOST}: data: {site.data} cannot be read"):
        site.start("controller", "b")
    site.start("trainer-0", "b")  # which needs none


def test_a_folder_that_is_not_shared_is_found(site: Site, tmp_path: Path) -> None:
    """Without the mount an empty folder of the same name would do, until the day that it is needed."""
    places = {name: {"run": {"checkpoints": str(tmp_path / name / "mnt")}} for name in site.hosts}
    site.start("trainer-0", "a", **places["a"])
    with pytest.raises(
        InputError, match=rf"controller on .*/b/mnt/demo is not what trainer-0 on {HOST}"
    ):
        site.start("controller", "b", **places["b"])
    (tmp_path / "b").mkdir(exist_ok=True)
    (tmp_path / "b" / "mnt").symlink_to(tmp_path / "a" / "mnt")  # now it is mounted
    site.start("controller", "b", **places["b"])


def test_a_place_that_another_managers_run_of_this_id_has_is_refused(
    site: Site, bucket: Endpoint, tmp_path: Path
) -> None:
    for checkpoints in (str(tmp_path / "shared"), "s3://payloads/owned"):
        place = {"run": {"checkpoints": checkpoints}}
        site.start("trainer-0", "a", **place)
        site.start("controller", "b", **place)
        own, site.store_url = site.store_url, f"sqlite:{tmp_path / 'others.sqlite'}"
        with pytest.raises(InputError, match="is of another run called demo"):
            site.start("trainer-0", "b", **place)
        (tmp_path / "others.sqlite").unlink()
        site.store_url = own
        asyncio.run(site.forget_place())


def test_ranks_on_several_hosts_start_from_equal_weights(site: Site) -> None:
    several = {"network": {"subnet": "10.0.0.0/8"}, "trainer": {"data_parallel": 2}}
    site.start("trainer-0", "a", **several)
    site.start("trainer-1", "b", **several)
    with (site.hosts["b"] / "tiny" / "model.safetensors").open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"!!")
    asyncio.run(site.launch())
    with pytest.raises(
        InputError, match=r"by its model\.safetensors; give every host of the trainer"
    ):
        site.start("trainer-1", "b", **several)
    site.start("rollout-0", "b", **several)  # its weights come from the trainer


def checkpoint(run: Path, step: int, digest: str) -> None:
    """As much of it as a start looks at."""
    folder = run / "checkpoints" / f"step-{step:05d}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"step": step, "shards": [digest]}))


def test_all_ranks_and_lives_begin_with_one_checkpoint_of_another_run(
    site: Site, tmp_path: Path
) -> None:
    """Which may go on, and write a newer one between two looks; ranks without an export are in no weight root."""
    first = tmp_path / "first"
    begin = {"trainer": {"data_parallel": 2, "load": str(first)}}
    checkpoint(first, 10, "a")
    config = site.start("trainer-0", "a", **begin)
    assert config.trainer.load == first / "checkpoints" / "step-00010"
    assert site.start("trainer-1", "b", **begin).trainer == config.trainer
    checkpoint(first, 20, "b")
    line = r"trainer-1 on .*: trainer\.load: .*step-00020 is not what trainer-0 on .* had, by its state\.json"
    with pytest.raises(InputError, match=line):
        site.start("trainer-1", "b", **begin)
    named = {"trainer": {"data_parallel": 2, "load": str(config.trainer.load)}}
    site.start("trainer-1", "b", **named)
    checkpoint(site.hosts["b"] / "run", 5, "c")  # its own: nobody reads another any more
    site.start("trainer-1", "b", **begin)


def test_places_that_take_no_files_are_named(site: Site, bucket: Endpoint) -> None:
    (site.data.parent / "file").write_text("")
    for key in ("payloads", "checkpoints"):
        line = rf"controller on {HOST}: run\.{key}: .*file.*: Not a directory"
        with pytest.raises(UnavailableError, match=line):
            site.start("controller", "a", run={key: str(site.data.parent / "file" / "x")})
    site.start("trainer-0", "a", run={"checkpoints": "s3://payloads/here"})
    site.start("controller", "a", run={"payloads": "s3://payloads/here"})


class ReadOnly(FolderPlace):
    def write(self, data: bytes, name: str) -> None:
        raise InputError(f"{self._key}: {self.url}/{name}: Permission denied")


@pytest.mark.parametrize("key", ["payloads", "checkpoints"])
def test_a_controller_that_may_only_read_what_others_write_is_found(
    site: Site, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    where = {"run": {key: str(site.data.parent / "shared")}}
    site.start("trainer-0", "a", **where)
    monkeypatch.setattr(host_checks, "open_place", lambda url, key: ReadOnly(Path(url), key))
    with pytest.raises(InputError, match=rf"controller on {HOST}: run\.{key}: .*denied"):
        site.start("controller", "b", **where)


Usage = namedtuple("Usage", "total used free")


def test_a_disk_without_room_for_checkpoints_is_named(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_checks.shutil, "disk_usage", lambda folder: Usage(1, 1, 1000))
    with pytest.raises(InputError) as raised:
        site.start("trainer-0", "a", run={"keep_checkpoints": 3})
    line = f"trainer-0 on {HOST}: {site.hosts['a']}/run: 4 checkpoints and the trained model take up to"
    assert str(raised.value).startswith(line)
    site.start("trainer-1", "a", run={"groups_per_step": 8}, trainer={"data_parallel": 2})


@pytest.mark.parametrize(
    ("trainer", "share"),
    [
        ({"data_parallel": 2, "distributed_optimizer": True}, 12 / 2),
        ({"optimizer": "adamw_bf16"}, 8),
    ],
)
def test_room_is_asked_for_what_the_rank_will_write(
    site: Site, monkeypatch: pytest.MonkeyPatch, trainer: dict[str, Any], share: float
) -> None:
    """Bytes for each parameter of the model, in a checkpoint."""
    told = {"run": {"groups_per_step": 8, "keep_checkpoints": 9}, "model": {"dtype": "bfloat16"}}
    rank = trainer.get("data_parallel", 1) - 1
    facts = read_model_folder(site.hosts["a"] / "tiny")
    weights = sum(file.stat().st_size for file in (site.hosts["a"] / "tiny").glob("*.safetensors"))
    needed = 10 * share * facts.num_parameters + (0 if rank else weights)
    for free, has_room in ((1.3 * needed, True), (0.7 * needed, False)):
        usage = Usage(1, 1, free)
        monkeypatch.setattr(host_checks.shutil, "disk_usage", lambda folder, usage=usage: usage)
        with nullcontext() if has_room else pytest.raises(InputError, match="make room there"):
            site.start(f"trainer-{rank}", "a", **told, trainer=trainer)


def test_what_the_doctor_finds_is_told_by_each_service_that_no_launcher_here_has_started(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth99")
    for name in ("trainer-0", "rollout-0", "controller", "reward"):
        site.start(name, "a")
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("doctor: GLOO_SOCKET_IFNAME=eth99: there is no such interface")
    monkeypatch.setenv(PARENT_VARIABLE, "1")  # the launcher has said it
    site.start("trainer-0", "a")
    assert not capsys.readouterr().err


def test_what_other_services_need_is_not_asked_of_this_host(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the whole run a doctor here says that it lacks devices and memory."""
    wants = {"rollout": {"device": "cuda", "kv_cache_gib": 4096, "replicas": 64}}
    show_errors(site.config("a", **wants))
    assert capsys.readouterr().err.count("doctor:") >= 1
    for name in ("trainer-0", "controller", "reward"):
        site.start(name, "a", **wants, trainer={"device": "cpu"})
        assert not capsys.readouterr().err, name
    site.start("rollout-0", "a", rollout=wants["rollout"] | {"device": "cpu"})
    assert "needs 4.1e+03 GiB of host memory at least" in capsys.readouterr().err
