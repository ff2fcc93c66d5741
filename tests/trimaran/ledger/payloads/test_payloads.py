"""Payloads in a folder and in a bucket: durable, checked, and what happens where there is no room."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.bucket_server import Endpoint, served
from tests.controller.fakes import make_config
from tests.controller.memory_store import CrashError, MemoryPayloads, MemoryStore
from tests.tiny_disk import mounted
from trimaran.errors import InputError, UnavailableError
from trimaran.host.places import open_place
from trimaran.ledger.disk import NoRoomError
from trimaran.ledger.ledger import Retention, RunLedger, read_trees
from trimaran.ledger.payloads.archive import PREFIX
from trimaran.ledger.payloads.files import (
    FolderPayloads,
    MissingPayloadError,
    Payloads,
    claim_payloads,
    open_payloads,
    payload_digest,
)
from trimaran.ledger.payloads.pack import Pack, place_of
from trimaran.ledger.records import (
    Checkpointed,
    Committed,
    Consumed,
    Generated,
    Issued,
    Opened,
    Scored,
)
from trimaran.ledger.write_pause import HeldError, WritePause
from trimaran.store import open_store
from trimaran.types import VersionId

ROW = {payload_digest(data): data for data in (b"one", b"two")}


@pytest.fixture(scope="module")
def server() -> Iterator[Endpoint]:
    with served() as server:
        yield server


@pytest.fixture
def endpoint(server: Endpoint) -> Endpoint:
    """It stands, whatever the test before did to it."""
    if server.process.poll() is not None:
        server.start()
    return server


def bucket(name: str, of: str = "payloads") -> Payloads:
    """Given up after a second."""
    return Payloads(open_place(f"s3://{of}/{name}", "run.payloads", 1), 60, 16)


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.e2e)])
def payloads(request: pytest.FixtureRequest, tmp_path: Path) -> Payloads:
    if request.param == "folder":
        return FolderPayloads(tmp_path / "payloads")
    request.getfixturevalue("endpoint")
    return bucket(f"some/path/{tmp_path.name}")


async def test_payloads_come_back_and_have_one_owner(payloads: Payloads) -> None:
    assert await payloads.sizes() == {}
    await payloads.write(ROW)
    await payloads.write(ROW)
    for name, data in ROW.items():
        assert await payloads.read(name) == data
    with pytest.raises(MissingPayloadError, match=r"a{64}: payload is missing"):
        await payloads.read("a" * 64)
    await payloads.write({"b" * 64: b"wrong name"})
    with pytest.raises(InputError, match="does not match its digest"):
        await payloads.read("b" * 64)
    name = next(iter(ROW))
    assert (await payloads.sizes())[name] == 3
    await payloads.delete({name, "b" * 64})
    assert set(await payloads.sizes()) == ROW.keys() - {name}
    await payloads.write({})
    assert [await payloads.claim(owner) for owner in ("a", "b", "a")] == ["a", "a", "a"]
    assert set(await payloads.sizes()) == ROW.keys() - {name}, "the owner would be collected"
    await payloads.close()


async def test_the_url_says_where(tmp_path: Path) -> None:
    places = {
        None: tmp_path / "run" / "payloads",
        str(tmp_path / "elsewhere"): tmp_path / "elsewhere" / "run-1",
        f"file://{tmp_path}/third": tmp_path / "third" / "run-1",
    }
    for url, folder in places.items():
        payloads = open_payloads(url, tmp_path / "run", "run-1")
        await payloads.write(ROW)
        await payloads.close()
        assert {path.name for path in folder.iterdir()} == ROW.keys()
    with pytest.raises(InputError, match=r"run\.payloads: nowhere://bucket"):
        open_payloads("nowhere://bucket", tmp_path, "run-1")


async def test_a_run_of_the_same_id_and_another_store_is_refused_the_place(tmp_path: Path) -> None:
    """Two managers, or folders, may give one id within the same second."""

    async def claim(store_name: str, epoch: int = 1) -> None:
        store = await open_store(f"sqlite:{tmp_path / store_name}")
        payloads = open_payloads(str(tmp_path / "shared"), tmp_path, "run-1")
        try:
            while await store.newest_epoch("run-1") < epoch:
                await store.next_epoch("run-1")
            await claim_payloads(payloads, str(tmp_path / "shared"), "run-1", epoch, store)
        finally:
            await payloads.close()
            await store.close()

    await claim("a.sqlite")
    with pytest.raises(InputError, match=r"run\.payloads: .*shared: .*another run called run-1"):
        await claim("b.sqlite")
    await claim("a.sqlite", epoch=2)  # a resume
    shutil.copy(tmp_path / "a.sqlite", tmp_path / "restored.sqlite")
    await claim("restored.sqlite", epoch=3)
    (tmp_path / "shared" / "run-1" / "owner").unlink()  # a place brought back without it
    await claim("a.sqlite", epoch=3)
    with pytest.raises(InputError):
        await claim("b.sqlite")


def test_credentials_do_not_stand_in_the_configuration() -> None:
    with pytest.raises(InputError, match=r"run\.payloads: holds credentials; give them in the env"):
        make_config(run={"payloads": "s3://key:secret@bucket/path"})
    assert make_config(run={"payloads": "s3://bucket/path"}).run.payloads == "s3://bucket/path"
    assert make_config(run={"payloads": "here"}).run.payloads == str(Path("here").resolve())


@pytest.mark.e2e
async def test_a_bucket_that_is_lost_or_was_never_made_is_named(endpoint: Endpoint) -> None:
    with pytest.raises(UnavailableError, match="s3://other-bucket/run/.*see that the bucket"):
        await bucket("run", "other-bucket").write(ROW)
    payloads = bucket("run")
    await payloads.write(ROW)
    endpoint.kill()
    with pytest.raises(UnavailableError, match="s3://payloads/run/.*see that the bucket"):
        await payloads.write(ROW)


async def open_ledger(
    store: Any, payloads: Any, pause: WritePause | None = None, **retention: Any
) -> RunLedger:
    pause = pause or WritePause(5, wait=lambda num_tries: 0.01)
    return await RunLedger.open(
        store, payloads, "run", retention=Retention(**retention), pause=pause
    )


def scored(ledger: RunLedger, number: int, num_bytes: int = 0) -> str:
    ledger.record(Issued(number, 1, "p"))
    ledger.record(Generated(number, 1, "d"))
    payload = ledger.keep(f"group {number}".encode().ljust(num_bytes, b"."))
    ledger.record(Scored(number, 1, payload))
    return payload


def trained(ledger: RunLedger, step: int, number: int) -> None:
    ledger.record(Consumed(step, ((number, 1),)))
    ledger.record(Committed(VersionId(0, step), "r"))


async def test_packs_are_read_in_part(payloads: Payloads) -> None:
    pack = Pack()
    names = [pack.add(data, payload_digest(data)) for data in (b"one", b"second", b"3")]
    await payloads.write({pack.file: pack.data()})
    assert [await payloads.read(name) for name in names] == [b"one", b"second", b"3"]
    assert await payloads.sizes() == {pack.file: 10}
    with pytest.raises(InputError, match="does not match its digest"):
        await payloads.read(names[1].replace(":3:6", ":2:6"))
    await payloads.write({pack.file: pack.data()[:8]})  # cut off
    assert await payloads.read(names[0]) == b"one"
    with pytest.raises(InputError, match="does not match its digest"):
        await payloads.read(names[1])
    await payloads.delete({pack.file})
    with pytest.raises(MissingPayloadError, match=rf"{pack.file}:0:3: payload is missing"):
        await payloads.read(names[0])
    await payloads.close()


async def test_what_is_flushed_together_is_one_file(tmp_path: Path) -> None:
    payloads = FolderPayloads(tmp_path)
    ledger = await open_ledger(MemoryStore(), payloads)
    names = [scored(ledger, number) for number in range(3)]
    await ledger.flush()
    names.append(scored(ledger, 3))
    await ledger.flush()
    for number, name in enumerate(names):
        assert await ledger.load(name) == f"group {number}".encode()
    assert sorted((await payloads.sizes()).values()) == [7, 21]
    await ledger.close()


async def test_a_pack_stays_until_none_of_its_groups_is_needed() -> None:
    payloads = MemoryPayloads()
    ledger = await open_ledger(MemoryStore(), payloads)
    first, second = scored(ledger, 0), scored(ledger, 1)
    for step, number in ((1, 0), (2, 1)):
        trained(ledger, step, number)
        ledger.record(Checkpointed(step, "c", step))
        await ledger.collect()
        assert len(payloads.data) == (1 if step == 1 else 0)
        if step == 1:
            assert await ledger.load(first) == b"group 0"
            assert await ledger.load(second) == b"group 1"


def test_what_a_killed_controller_had_half_written_goes(tmp_path: Path) -> None:
    (tmp_path / ".groups-5f0c.77ab").write_bytes(b"half of a gr")
    asyncio.run(FolderPayloads(tmp_path).write(ROW))
    assert {path.name for path in tmp_path.iterdir()} == ROW.keys()


async def test_enospc_itself_is_reported_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Others write to the disk between our look at it and our write."""

    class Blind(FolderPayloads):
        def _make_ready(self, num_bytes: int) -> None: ...

    with mounted(tmp_path / "tiny", "1m") as folder:
        payloads = Blind(folder / "payloads")
        with pytest.raises(UnavailableError, match="No space left on device; make room there"):
            await payloads.write({payload_digest(b"x"): b"." * 2_000_000})
        assert await payloads.sizes() == {}


def test_a_part_of_the_disk_is_left_to_others(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    payloads = FolderPayloads(tmp_path / "payloads", reserve=2 * free)
    with pytest.raises(NoRoomError, match="held in reserve"):
        asyncio.run(payloads.write(ROW))


async def test_the_quota_collects_first_and_then_holds() -> None:
    num_asked = 0

    async def ask() -> None:
        nonlocal num_asked
        num_asked += 1

    payloads, store = MemoryPayloads(), MemoryStore()
    ledger = await open_ledger(
        store, payloads, WritePause(0.05, wait=lambda n: 0.01), quota_gib=1000 / (1 << 30)
    )
    await ledger.until_room(0, ask)
    scored(ledger, 0, 400)
    trained(ledger, 1, 0)
    await ledger.flush()
    assert not ledger.is_filled(0.75)
    scored(ledger, 1, 400)
    trained(ledger, 2, 1)
    await ledger.flush()
    assert ledger.is_filled(0.75)
    ledger.record(Checkpointed(2, "c", 2))
    await ledger.until_room(700, ask)  # only without the first two
    kept = scored(ledger, 2, 700)
    await ledger.flush()
    assert set(payloads.data) == {place_of(kept).file} and not num_asked
    with pytest.raises(HeldError, match=r"held for 0\.05 s .*run\.payload_quota_gib"):
        await ledger.until_room(400, ask)
    assert num_asked > 1 and not ledger.is_short


async def test_a_payload_without_room_keeps_no_record_waiting_and_a_checkpoint_lets_it_in() -> None:
    """Else the step under way could not be committed, and there would be no checkpoint."""
    payloads, held, asked = MemoryPayloads(), list[str](), asyncio.Event()

    async def ask() -> None:
        asked.set()

    # Who waits for room does not look again by himself.
    pause = WritePause(
        3600, on_hold=lambda text, values: held.append(text), wait=lambda num_tries: 3600.0
    )
    ledger = await open_ledger(MemoryStore(), payloads, pause, quota_gib=1000 / (1 << 30))
    await ledger.until_room(0, ask)
    for number in range(2):
        scored(ledger, number, 450)
        trained(ledger, number + 1, number)
    await ledger.flush()
    waiting = [asyncio.create_task(ledger.until_room(n, ask)) for n in (400, 300)]
    async with asyncio.timeout(60):
        await asked.wait()
        ledger.record(Checkpointed(2, "c", 2))
        await ledger.flush()
        assert ledger.is_short and not any(task.done() for task in waiting)
        await ledger.collect()
        await asyncio.gather(*waiting)
    assert not ledger.is_short and len(held) == 1 and not payloads.data


async def test_what_a_resume_would_read_is_kept_until_a_record_that_is_written_says_otherwise() -> (
    None
):
    """The newest records may be lost with their controller."""
    payloads, store = MemoryPayloads(), MemoryStore()
    ledger = await open_ledger(store, payloads)
    payload = scored(ledger, 0, 400)
    await ledger.flush()
    sizes = payloads.sizes

    async def reissued_meanwhile() -> dict[str, int]:
        if ledger.state.groups[0].attempt == 1:
            ledger.record(Issued(0, 2, "p"))
        return await sizes()

    payloads.sizes = reissued_meanwhile
    await ledger.collect()
    resumed = await open_ledger(store, payloads)
    assert resumed.state.groups[0].payload == payload
    await resumed.load(payload)
    await ledger.collect()
    assert not payloads.data, "it has been reissued"


@pytest.mark.parametrize(("keep_all", "num_kept"), [(True, 3), (False, 0)])
async def test_a_run_that_keeps_all_keeps_all(keep_all: bool, num_kept: int) -> None:
    payloads = MemoryPayloads()
    ledger = await open_ledger(MemoryStore(), payloads, keep_all=keep_all)
    for step in (1, 2, 3):
        scored(ledger, step)
        trained(ledger, step, step)
        ledger.record(Checkpointed(step, "c", step))
        await ledger.collect()
    assert len(payloads.data) == num_kept


@pytest.mark.parametrize("fault", ["crash before", "crash after"])
@pytest.mark.parametrize("num_writes", range(12))
async def test_a_controller_that_dies_at_any_write_leaves_no_archive_that_nothing_names(
    num_writes: int, fault: str
) -> None:
    store: Any = MemoryStore()
    payloads = MemoryPayloads()
    store.faults = [*[""] * num_writes, fault]
    for life in range(4):
        store.faults = store.faults if life < 3 else []
        ledger = await open_ledger(store, payloads, segment_records=4)
        with suppress(CrashError):
            for number in range(6):
                ledger.record(Opened(10 * life + number))  # each life has other records
                if number % 2:
                    await ledger.flush()
    trees = [tree async for _, tree in read_trees(store, payloads, "run")]
    named = {PREFIX + tree["archive"] for tree in trees if tree["kind"] == "compacted"}
    assert named == payloads.data.keys()
    assert len(named) >= 3
