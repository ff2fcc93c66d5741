"""Every wait of the vLLM engine ends, whatever of vLLM hangs. vLLM itself is a fake here."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from services.rollout.engine import GenerationRequest
from services.rollout.vllm import engine as vllm_engine
from services.rollout.vllm import workers as vllm_workers
from services.rollout.vllm.engine import VllmEngine
from services.rollout.vllm.loading.shown import Shown
from services.rollout.vllm.plugin import BACKEND
from services.rollout.vllm.stream import VllmStream
from services.rollout.vllm.workers import VllmWorkers
from tests.configs import configure
from trimaran.errors import BehindError, DeadlineError, TransferError, UnavailableError
from trimaran.host.device import Device
from trimaran.types import Manifest, Sampling, TensorInfo, VersionId

OLD, NEW = VersionId(0, 1), VersionId(0, 2)
REQUEST = GenerationRequest(1, (5, 6), Sampling(1.0, 8, 1, 0), {0: ()})
TENSOR = TensorInfo("a", "F32", (4,), 0, (2,), ("one", "two"))
MANIFEST = Manifest((TENSOR,), "root")
SHADOW = SimpleNamespace(path="/nowhere", manifest=MANIFEST, description=lambda: {"changes": None})
PATCHED = SimpleNamespace(
    path="/nowhere", manifest=MANIFEST, description=lambda: {"changes": {"path": "/there"}}
)


class Llm:
    """Records its calls. `hangs` and `fails` name those that never end, or end with an error."""

    def __init__(self):
        self.events: list[str] = []
        self.hangs, self.fails = set[str](), set[str]()
        self.answers: dict[str, Any] = {}
        """Of a worker, by method."""
        self.errored = False
        self.engine_core = SimpleNamespace()
        self.output_processor = SimpleNamespace(request_states={})

    async def call(self, name):
        self.events.append(name)
        if name in self.hangs:
            await asyncio.Event().wait()
        if name in self.fails:
            raise RuntimeError(f"{name} failed")

    async def collective_rpc(self, method, args):
        assert method == "attempt"
        try:
            await self.call(args[0])
        except RuntimeError as error:
            return [[False, str(error)]]
        return [[True, self.answers.get(args[0], True)]]

    async def pause_generation(self, mode, clear_cache):
        await self.call("pause")

    async def resume_generation(self):
        await self.call("resume")

    async def add_request(self, request_id, prompt, params):
        await self.call("add")
        return SimpleNamespace(put=self.events.append)

    async def abort(self, request_id):
        await self.call("abort")


@pytest.fixture
def llm():
    return Llm()


@pytest.fixture
def engine(llm, monkeypatch):
    """One that holds OLD, all read back, with a request under way. Its layers are packed."""
    config = configure(rollout={"idle_timeout": 0.05})
    monkeypatch.setattr(vllm_engine, "SUBMIT_SECONDS", 0.05)
    engine = VllmEngine(config, Device("cpu", "gloo"))
    engine.llm, engine._workers, engine._live = llm, VllmWorkers(llm, BACKEND), OLD
    engine._workers._refused.add(vllm_workers.WHOLE)
    engine._shown.note_load(by_vllm=True)
    engine._shown.note_reading(MANIFEST, {0: "one", 1: "two"}, engine._shown.num_loads)
    inputs: Any = ModuleType("vllm.inputs")
    inputs.TokensPrompt = dict
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.inputs", inputs)
    monkeypatch.setattr(engine, "_sampling_params", lambda *_: None)
    monkeypatch.setattr(vllm_engine, "_dead_error", lambda: BrokenPipeError)

    async def pass_outputs():
        await llm.call("outputs")

    monkeypatch.setattr(engine, "_pass_outputs", pass_outputs)
    monkeypatch.setattr(engine, "_count_made", lambda: defaultdict(dict))
    stream = VllmStream("running", {0: 0}, OLD)
    stream.collector = SimpleNamespace(put=lambda error: llm.events.append(type(error)))
    engine._streams.add(stream)
    return engine


async def given_up(coroutine):
    """Cancelled after a moment, as a deadline does."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await coroutine


UPDATE = ["start_weight_update", "update_weights", "finish_weight_update"]
LOAD = ["pause", *UPDATE, "pack_heads", "outputs", "resume"]
PREPARE = ["begin_writes", "prepare_writes"]
CHANGES = [*PREPARE, "pause", "make_writes", *LOAD[-2:]]


@pytest.fixture
def writes(llm):
    """Its workers can write into their parameters."""
    llm.answers |= {"begin_writes": "", "prepare_writes": ("", True)}


@pytest.fixture
def plain(engine, monkeypatch):
    """Its parameters are plain; it reads back whatever is put in here, and has read nothing yet of NEW,
    which vLLM has loaded."""
    digests = {0: "one", 1: "two"}

    async def read_back(manifest, ranges):
        return {number: digests[number] for first, end in ranges for number in range(first, end)}

    engine._workers._refused.clear()
    engine._shown = Shown()
    monkeypatch.setattr(engine._workers, "read_back", read_back)
    asyncio.run(engine.load_weights(SHADOW, NEW))
    engine.llm.events.clear()
    return digests


@pytest.mark.parametrize("shadow", [SHADOW, PATCHED], ids=["whole", "changes"])
def test_vllm_itself_loads_until_all_that_it_loaded_was_read_back(
    engine, llm, writes, plain, shadow
):
    """A joiner's read-back goes on across versions. What our own table has put somewhere it finds there."""
    for blocks in ((0, 1),), ((1, 2),):
        asyncio.run(engine.load_weights(shadow, NEW))
        asyncio.run(engine.read_back(MANIFEST, blocks))
    asyncio.run(engine.load_weights(shadow, NEW))
    assert llm.events == [*LOAD, *LOAD, *CHANGES]


def test_other_tensors_have_to_be_read_back_before_they_are_written(engine, llm, writes, plain):
    asyncio.run(engine.read_back(MANIFEST, ((0, 2),)))
    other = replace(MANIFEST, tensors=(TENSOR, replace(TENSOR, name="b")))
    shadow = SimpleNamespace(**{**vars(SHADOW), "manifest": other})
    asyncio.run(engine.load_weights(shadow, NEW))
    assert llm.events == LOAD


def test_vllm_loads_the_next_version_after_a_wrong_block(engine, llm, writes, plain):
    asyncio.run(engine.read_back(MANIFEST, ((0, 2),)))
    asyncio.run(engine.load_weights(SHADOW, NEW))
    plain[0] = "wrong"
    asyncio.run(engine.read_back(MANIFEST, ((0, 1),)))
    plain[0] = "one"
    llm.events.clear()
    # What is read before that load was written by our own table.
    asyncio.run(engine.read_back(MANIFEST, ((0, 2),)))
    asyncio.run(engine.load_weights(SHADOW, NEW))
    assert llm.events == LOAD
    asyncio.run(engine.read_back(MANIFEST, ((0, 2),)))
    asyncio.run(engine.load_weights(SHADOW, NEW))
    assert llm.events == [*LOAD, *CHANGES]


def test_what_is_read_while_a_version_is_loaded_shows_nothing(
    engine, llm, writes, plain, monkeypatch
):
    read = engine._workers.read_back

    async def load_meanwhile(manifest, ranges):
        # The same once more, as a replica that is fixed does.
        await engine.load_weights(SHADOW, NEW)
        return await read(manifest, ranges)

    monkeypatch.setattr(engine._workers, "read_back", load_meanwhile)
    asyncio.run(engine.read_back(MANIFEST, ((0, 2),)))
    asyncio.run(engine.load_weights(SHADOW, NEW))
    assert llm.events == [*LOAD, *LOAD]


def test_workers_that_cannot_write_a_whole_version_are_asked_once(engine, llm, writes, plain):
    asyncio.run(engine.read_back(MANIFEST, ((0, 2),)))
    llm.answers["begin_writes"] = "it is packed"
    for version in (NEW, VersionId(0, 3)):
        asyncio.run(engine.load_weights(SHADOW, version))
    assert llm.events == ["begin_writes", "drop_writes", *LOAD, *LOAD]


def during(llm, monkeypatch, call, happens):
    """`happens()` is awaited inside that call."""
    plain = llm.call

    async def with_more(name):
        await plain(name)
        if name == call:
            await happens()

    monkeypatch.setattr(llm, "call", with_more)


@pytest.mark.parametrize("call", PREPARE)
def test_requests_are_taken_while_changes_are_prepared(engine, llm, writes, monkeypatch, call):
    async def submit():
        streams.extend(await engine._submit(REQUEST, [{0: ()}]))

    streams: list[VllmStream] = []
    during(llm, monkeypatch, call, submit)
    asyncio.run(engine.load_weights(PATCHED, NEW))
    place = CHANGES.index(call) + 1
    assert llm.events == [*CHANGES[:place], "add", *CHANGES[place:]]
    assert [version for _, version in streams[0].marks] == [OLD, NEW]


@pytest.mark.parametrize("call", ["pause", "make_writes", "resume"])
def test_no_request_is_taken_in_the_pause(engine, llm, writes, monkeypatch, call):
    async def submit():
        with pytest.raises(DeadlineError, match="a load of weights"):
            await engine._submit(REQUEST, [{0: ()}])

    during(llm, monkeypatch, call, submit)
    asyncio.run(engine.load_weights(PATCHED, NEW))
    assert llm.events == CHANGES


async def test_a_request_that_vllm_takes_while_a_preparation_fails_is_ended(
    engine, llm, writes, monkeypatch
):
    llm.hangs = {"prepare_writes"}
    add = llm.add_request

    async def add_late(*given):
        await given_up(engine.load_weights(PATCHED, NEW))
        return await add(*given)

    monkeypatch.setattr(llm, "add_request", add_late)
    monkeypatch.setattr(vllm_engine, "SUBMIT_SECONDS", 30.0)
    with pytest.raises(BehindError, match="no version"):
        await engine._submit(REQUEST, [{0: ()}])
    assert llm.events[-2:] == ["add", "abort"]


async def test_a_sleep_does_not_hold_up_the_load_that_it_waits_for(
    engine, llm, writes, monkeypatch
):
    sleeps: list[asyncio.Task[None]] = []

    async def ask_for_sleep():
        sleeps.append(asyncio.create_task(engine.sleep()))
        await asyncio.sleep(0.01)

    during(llm, monkeypatch, "prepare_writes", ask_for_sleep)
    async with asyncio.timeout(30):
        await engine.load_weights(PATCHED, NEW)
        await sleeps[0]
    assert llm.events == [*CHANGES, BehindError, "pause", "drop_cache"]


async def test_workers_that_do_not_drop_changes_are_asked_again_after_the_next_load(
    engine, llm, writes, monkeypatch
):
    monkeypatch.setattr(vllm_workers, "GIVE_UP_SECONDS", 0.05)

    llm.hangs = {"prepare_writes", "drop_writes"}
    async with asyncio.timeout(30):
        await given_up(engine.load_weights(PATCHED, NEW))
    llm.hangs, llm.events = set(), []
    await engine.load_weights(SHADOW, NEW)
    assert llm.events == [*LOAD, "drop_writes"]


async def test_long_steps_do_not_make_the_preparation_long(monkeypatch):
    """The core takes one call a step: with steps of 1 s, 2 s of work by 20 ms would take 100 s of a commit."""
    now, left = [0.0], [2.0]

    class BusyWorkers(VllmWorkers):
        async def call(self, method, *args):
            if method == "begin_writes":
                return [""]
            (seconds,) = args or (0.0,)
            now[0] += 1.0 + seconds
            left[0] -= seconds
            return [("", left[0] <= 0)]

    monkeypatch.setattr(vllm_workers, "time", SimpleNamespace(monotonic=lambda: now[0]))

    workers = BusyWorkers(None, BACKEND)
    async with workers.prepared_writes("/nowhere", PATCHED.description(), True) as are_prepared:
        assert are_prepared
        assert now[0] < 6


@pytest.mark.parametrize(
    ("method", "answer"), [("begin_writes", "it is packed"), ("prepare_writes", ("no room", False))]
)
def test_everything_is_loaded_where_the_workers_cannot_write_changes(
    engine, llm, writes, method, answer
):
    llm.answers[method] = answer
    asyncio.run(engine.load_weights(PATCHED, NEW))
    assert llm.events == [*PREPARE[: PREPARE.index(method) + 1], "drop_writes", *LOAD]


@pytest.mark.parametrize("fault", ["hangs", "fails"])
@pytest.mark.parametrize("call", [*PREPARE, "pause", "make_writes"])
async def test_after_changes_that_were_given_up_they_are_dropped_and_everything_is_loaded(
    engine, llm, writes, call, fault
):
    setattr(llm, fault, {call})
    if fault == "hangs":
        await given_up(engine.load_weights(PATCHED, NEW))
    else:
        with pytest.raises(TransferError, match=f"{call} failed"):
            await engine.load_weights(PATCHED, NEW)
    dropped = [] if call == "make_writes" else ["drop_writes"]  # some of them are written
    assert llm.events == [*CHANGES[: CHANGES.index(call) + 1], *dropped, BehindError]
    with pytest.raises(BehindError, match="no version"):
        await engine._submit(REQUEST, [{0: ()}])
    llm.hangs, llm.fails, llm.events = set(), set(), []
    await engine.load_weights(PATCHED, NEW)
    assert llm.events == LOAD


@pytest.mark.parametrize("call", LOAD)
async def test_a_load_that_is_cut_off_leaves_nothing_live_and_the_next_one_begins_again(
    engine, llm, call
):
    llm.hangs = {call}
    await given_up(engine.load_weights(SHADOW, NEW))
    assert llm.events[-1] is BehindError  # the request under way has ended
    with pytest.raises(BehindError, match="no version"):
        await engine._submit(REQUEST, [{0: ()}])
    llm.hangs, llm.events = set(), []
    await engine.load_weights(SHADOW, NEW)
    await engine._submit(REQUEST, [{0: ()}])
    abandoned = ["abandon_update"] if call in UPDATE else []
    assert llm.events == ["pause", *abandoned, *LOAD[1:], "add"]


@pytest.mark.parametrize("hangs", [{"add"}, {"add", "abort"}])
async def test_a_request_that_vllm_does_not_take_frees_the_lock(engine, llm, hangs):
    llm.hangs = hangs
    with pytest.raises(DeadlineError, match="handed a request"):
        await engine._submit(REQUEST, [{0: ()}])
    await engine.load_weights(SHADOW, NEW)
    assert llm.events[:2] == ["add", "abort"]


async def test_the_first_request_of_a_prompt_brings_its_images_and_no_other_comes_in_between(
    engine, llm, monkeypatch
):
    async def add(*_):
        await asyncio.sleep(0)

    given: list[Any] = []
    monkeypatch.setattr(engine, "_prompt", lambda ids, images, brings: given.append((ids, brings)))
    monkeypatch.setattr(llm, "add_request", add)
    requests = [replace(REQUEST, prompt_token_ids=(n,)) for n in range(3)]
    parts = [{0: ()}, {1: (8,), 2: (9,)}]
    await asyncio.gather(*(engine._submit(one, parts) for one in requests))
    assert given == [one for n in range(3) for one in (([n], True), ([n, 8], False))]


async def test_a_request_that_vllm_gives_up_is_no_completion(engine, llm, monkeypatch):
    async def add(*_):
        return SimpleNamespace(get_nowait=lambda: said)

    output = SimpleNamespace(index=0, finish_reason="error", token_ids=[], logprobs=None)
    said = SimpleNamespace(outputs=[output], num_cached_tokens=None)
    monkeypatch.setattr(llm, "add_request", add)
    with pytest.raises(UnavailableError, match=r"gave a request up \(error\)"):
        async for event in engine.generate(REQUEST):
            raise AssertionError(event)
    assert llm.events == ["abort"]


async def start(workers):
    await workers.start(0.05)
    await workers.compute_faster(0.05)


STARTING = ["end_with_parent", "init_weight_transfer_engine", "compute_faster"]


@pytest.mark.parametrize("call", STARTING)
def test_workers_that_do_not_answer_at_the_start_end_it(llm, call):
    llm.hangs, llm.answers["report_processed_logprobs"] = {call}, ""
    with pytest.raises(DeadlineError, match="start of vllm's workers|compute faster"):
        asyncio.run(start(VllmWorkers(llm, BACKEND)))
