from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands.cli.main import main
from services.weight_sync.coordinator import Coordinator
from services.weight_sync.ledger import VersionLedger
from services.weight_sync.pauses import Pauses
from services.weight_sync.server import WeightSyncServicer
from tests.cli.conftest import Ran
from tests.cli.fake_weight_sync import RUN, FakeWeightSync, proof, record, root_of, serve
from tests.weight_sync import fakes
from trimaran.config import WeightSyncSection
from trimaran.run.network import LOOPBACK
from trimaran.store.sqlite import SqliteStore
from trimaran.types import Manifest, Proof, TensorInfo
from trimaran.v1 import weight_sync_pb2, weight_sync_pb2_grpc
from trimaran.wire import rpc

GONE = "127.0.0.1:1"
"""Nothing listens there."""

Runs = Callable[..., Path]
Ask = Callable[..., Any]

RECORDS = [record(2, proof(2, "rollout-0", 8), proof(2, "rollout-1")), record(1), record(0)]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """runs(name, address) makes runs/<name> in the working directory; each one newer."""
    monkeypatch.chdir(tmp_path)
    count = iter(range(1, 100))

    def make(name: str = RUN, address: str = GONE) -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        tree = {
            "model": {"path": "model"},
            "data": {"train": "train.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
            "endpoints": {"weight_sync": address},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(tree))
        started = next(count)
        os.utime(folder / "config.yaml", (started, started))
        return folder

    return make


@pytest.fixture
def ask(ran: Ran) -> Ask:
    """ask(service, address, arguments…, code=0) -> what `trimaran weights …` has written."""

    def run(service: FakeWeightSync | None, address: str, *arguments: object, code: int = 0) -> Any:
        async def scenario() -> Any:
            server = await serve(service, address) if service else None
            command = ["weights", *(str(argument) for argument in arguments)]
            try:
                return await asyncio.to_thread(ran, command, code)
            finally:
                if server:
                    await server.stop()

        captured = asyncio.run(scenario())
        assert "Traceback" not in captured.err
        return captured

    return run


@pytest.fixture
def address() -> str:
    return LOOPBACK.free_address()


@pytest.fixture
def here(runs: Runs, address: str) -> str:
    """The address of weight sync of a run that is here."""
    runs(address=address)
    return address


def test_versions_newest_first_with_how_far_each_is_proven(ask: Ask, here: str) -> None:
    bad = record(1, proof(1, "rollout-1", 3, fault="block 5 differs"))
    out = ask(FakeWeightSync([RECORDS[0], bad]), here, "list").out
    first, _, newest, older, fault = out.splitlines()
    assert first == f"{RUN}, as weight sync at {here} knows it"
    assert newest.split()[:2] == ["0.2", "live"]
    assert newest.split()[4:] == [root_of(2)[:12], "8", "2.5", "56.2%", "2", "of", "2"]
    assert older.split()[0] == "0.1"
    assert older.rstrip().endswith("0 of 1")
    assert fault == "0.1 on rollout-1: block 5 differs"


def test_one_version_and_what_each_replica_proved(ask: Ask, here: str) -> None:
    out = ask(FakeWeightSync(RECORDS), here, "show", RUN, "0.2").out
    assert "version 0.2 (live), committed" in out
    assert f"root {root_of(2)}, 8 blocks, 2.5 MB" in out
    assert out.splitlines()[-2].split() == ["rollout-0", "0.2", "8", "8", "good"]
    assert out.splitlines()[-1].split() == ["rollout-1", "0.2", "8", "1", "good"]


@pytest.mark.parametrize(
    "arguments", [[], ["live"], ["0.2"], [RUN], [RUN, "live"], [f"runs/{RUN}"]]
)
def test_the_short_forms_of_show(runs: Runs, ask: Ask, address: str, arguments: list[str]) -> None:
    runs("older-20250101-120000")
    runs(address=address)
    out = ask(FakeWeightSync(RECORDS), address, "show", *arguments).out
    assert "version 0.2 (live)" in out


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (proof(2, "rollout-1", fault="block 5 differs"), "block 5 differs"),
        (proof(2, "rollout-1", root="f" * 32), f"holds root {'f' * 32}"),
    ],
)
def test_a_bad_proof_is_shown_and_is_exit_code_1(ask: Ask, here: str, bad: Any, text: str) -> None:
    service = FakeWeightSync([record(2, proof(2, "rollout-0"), bad)])
    out = ask(service, here, "show", code=1).out
    assert text in " ".join(out.split())


def test_verify_reads_back_every_replica(ask: Ask, here: str) -> None:
    verified = [proof(2, "rollout-0", 8), proof(2, "rollout-1", 8)]
    service = FakeWeightSync(RECORDS, verified)
    out = ask(service, here, "verify").out
    assert service.asked == [("list",), ("verify",), ("list",)]
    assert out.splitlines()[-1] == (
        f"2 of 2 replicas have loaded every block of version 0.2 of {RUN}, root {root_of(2)}"
    )


@pytest.mark.parametrize(
    ("service", "text"),
    [
        (FakeWeightSync(RECORDS), "0 of 0 replicas"),
        (FakeWeightSync(RECORDS, [proof(2, "rollout-0", 7)]), "1 of 8 blocks were not read back"),
        (FakeWeightSync(RECORDS, [proof(1, "rollout-0", 8)]), "holds version 0.1, which is not"),
        (FakeWeightSync(RECORDS, [proof(2, "rollout-0", 8, "f" * 32)]), "holds root ffff"),
        (FakeWeightSync(RECORDS, [proof(2, "rollout-0", 3, "", "block 5 differs")]), "block 5"),
        (FakeWeightSync(RECORDS, [], {"rollout-0": "is catching up"}), "is catching up"),
    ],
)
def test_verify_is_exit_code_1_unless_all_is_loaded(
    ask: Ask, here: str, service: FakeWeightSync, text: str
) -> None:
    out = ask(service, here, "verify", code=1).out
    assert text in " ".join(out.split())


def test_a_version_that_goes_live_during_the_verification_is_right_too(ask: Ask, here: str) -> None:
    verified = [proof(2, "rollout-0", 8), proof(3, "rollout-1", 8)]
    service = FakeWeightSync(RECORDS, verified, after_verify=[record(3)])
    out = ask(service, here, "verify").out
    assert "2 of 2 replicas have loaded every block of version 0.3" in out


def test_for_machines(ask: Ask, here: str) -> None:
    proofs = [proof(2, "rollout-0", 8), proof(2, "rollout-1", 3, fault="block 5 differs")]
    service = FakeWeightSync(RECORDS, proofs, {"rollout-2": "is catching up"})
    listed = json.loads(ask(service, here, "list", "--json").out)
    assert [version["version"] for version in listed["versions"]] == ["0.2", "0.1", "0.0"]
    assert [version["live"] for version in listed["versions"]] == [True, False, False]
    shown = json.loads(ask(service, here, "show", "0.2", "--json").out)
    assert shown["root"] == root_of(2)
    out = ask(service, here, "verify", "--json", code=1).out
    facts = json.loads(out)
    assert facts["verified"] is False
    assert [(row["replica"], row["fault"]) for row in facts["replicas"]] == [
        ("rollout-0", ""),
        ("rollout-1", "block 5 differs"),
        ("rollout-2", "is catching up"),
    ]
    assert facts["replicas"][0]["num_loaded"] == 8


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["show", "0.9"], f"0.9: no version of {RUN}; known: 0.2, 0.1, 0.0"),
        (["show", RUN, "0.x"], "0.x: not a version; give LINEAGE.STEP, such as 0.12, or live"),
        (["show", "elsewhere"], "elsewhere: not a run; known in "),
        (["list", "elsewhere"], f"runs: {RUN}, older-20250101-120000"),
        (["verify", "elsewhere/rollout-0"], "elsewhere: not a run"),
        (["verify", "rollout-7"], "replica 'rollout-7' has not registered; known: rollout-0"),
    ],
)
def test_bad_input_is_one_line_that_names_what_is_known(
    runs: Runs, ask: Ask, address: str, arguments: list[str], text: str
) -> None:
    runs("older-20250101-120000")
    runs(address=address)
    service = FakeWeightSync(RECORDS, [proof(2, "rollout-0", 8)])
    out, err = ask(service, address, *arguments, code=2)
    assert out == "" and err.startswith("error: ")
    assert err.count("\n") == 1
    assert text in err


def test_verify_of_a_run_that_has_ended(runs: Runs, ask: Ask) -> None:
    folder = runs()
    err = ask(None, "", "verify", code=2).err
    assert err == (
        f"error: {RUN}: weight sync at {GONE} does not answer, so nothing can be read back;"
        f" what was proven: trimaran weights show {folder}\n"
    )


def commit(folder: Path) -> None:
    """Two versions in the run's store, as weight sync leaves them at its end."""
    tensors = (TensorInfo("w", "F32", (4,), 0, (2,), ("0" * 32, "1" * 32)),)

    async def write() -> None:
        store = SqliteStore(folder / "store.sqlite")
        ledger = await VersionLedger.open(store, folder.name)
        for step in (0, 1):
            live = record(step).policy
            manifest = Manifest(tensors, live.root)
            await ledger.prepare(manifest)
            await ledger.commit(
                fakes.CALLER, live, manifest, [Proof(live.version, "rollout-0", live.root, 2, 2)]
            )
        wrong = Proof(live.version, "rollout-1", live.root, 2, 1, "block 1 differs")
        await ledger.save_proofs([wrong])
        await store.close()

    asyncio.run(write())


def test_a_run_that_has_ended_is_read_from_its_store(runs: Runs, ask: Ask) -> None:
    folder = runs()
    commit(folder)
    out = ask(None, "", "list").out
    assert out.startswith(f"{RUN}, as its store has it (weight sync: {GONE} does not answer)\n")
    newest, older, fault = out.splitlines()[2:]
    assert newest.split()[:2] == ["0.1", "live"]
    assert older.split()[0] == "0.0"
    assert fault == "0.1 on rollout-1: block 1 differs"
    ask(None, "", "show", "0.0")
    out = ask(None, "", "show", "--json", code=1).out
    assert [row["fault"] for row in json.loads(out)["replicas"]] == ["", "block 1 differs"]


def test_a_run_without_a_store(runs: Runs, ask: Ask) -> None:
    folder = runs()
    assert "no version was committed" in ask(None, "", "list").out
    assert not (folder / "store.sqlite").exists()
    err = ask(None, "", "show", code=2).err
    assert f"live: no version of {RUN}; known: none yet" in err


def test_another_run_at_the_address_of_one_that_has_ended(
    runs: Runs, ask: Ask, address: str
) -> None:
    commit(runs(address=address))
    other = FakeWeightSync(RECORDS, run_id="another")
    out = ask(other, address, "list").out
    assert f"{address} says: run '{RUN}' is not served here; this is 'another'" in out
    assert out.splitlines()[2].split()[0] == "0.1"
    err = ask(other, address, "verify", code=2).err
    assert "is not served here" in err


async def test_with_the_real_service(
    runs: Runs, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The coordinator that a run has, before replicas that move no bytes."""
    folder = runs(fakes.RUN, address)
    world, store = fakes.World(), SqliteStore(folder / "store.sqlite")

    async def command(*arguments: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, ["weights", *arguments])
        return code, capsys.readouterr().out

    await store.next_epoch(fakes.RUN)
    coordinator = Coordinator(
        *(fakes.RUN, WeightSyncSection(), await VersionLedger.open(store, fakes.RUN)),
        *(world.connect_senders, world.connect_rollout),
        Pauses(first_retry=0.05),
    )
    add = weight_sync_pb2_grpc.add_WeightSyncServiceServicer_to_server
    servicer = WeightSyncServicer(coordinator)
    service = rpc.service(weight_sync_pb2.DESCRIPTOR, add, servicer)
    server = rpc.Server(address, [service])
    await server.start()
    coordinator.start()
    try:
        for name in ("a", "b"):
            await coordinator.register(fakes.RUN, *world.add(name))
        await coordinator.publish(fakes.CALLER, fakes.version_of(1))
        async with asyncio.timeout(30):
            while len(coordinator.routing().routable) < 2:
                await asyncio.sleep(0.05)
        code, out = await command("verify")
        assert (code, "2 of 2 replicas" in out) == (0, True)
        assert (await command("verify", "b"))[0] == 0
        assert "2 of 2" in (await command("list"))[1]

        world.replicas["b"].wrong, world.replicas["b"].proof = {2}, "wrong"
        code, out = await command("verify")
        assert code == 1
        assert "1 of 2 replicas" in out
        assert "w block 2" in " ".join(out.split())
        code, out = await command("verify")
        assert (code, "1 of 2 replicas" in out) == (1, True), "b has left routing, not the pool"
        assert (await command("show"))[0] == 1
    finally:
        await server.stop()
        await coordinator.close()
        await store.close()
