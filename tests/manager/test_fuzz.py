"""RunService under whatever comes: every refusal is a canonical code that names the field.

Messages of all methods, right and wrong, in any order, with and without tokens, on runs of one's own
and of others. What may not happen: an error that nobody foresaw, an answer to a stranger, a change
to another owner's run.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from asyncio import Runner
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from services.manager.clients_file import make_client
from services.manager.permissions import CHANGING, READING
from services.manager.records import Records
from services.manager.serve import Serving
from services.manager.server import MAX_REQUEST_BYTES
from tests.manager.fakes import FakeLauncher, managing, specification, until
from trimaran.config import RunConfig
from trimaran.run.context import RunContext
from trimaran.run.launchers import Presence
from trimaran.run.runs import Goal
from trimaran.trust.access import LOCAL, ClientIdentity, Role
from trimaran.v1 import run_pb2
from trimaran.wire import rpc

SERVICE = run_pb2.DESCRIPTOR.services_by_name["RunService"]
METHODS: list[MethodDescriptor] = list(SERVICE.methods)
BROKEN = grpc.StatusCode.INVALID_ARGUMENT
CANONICAL = {
    grpc.StatusCode.OK,
    BROKEN,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""Of a client whose token is known. UNAUTHENTICATED is for others; whatever else is a fault."""
ROLES = {"anna": ("team-a", "submitter"), "bob": ("team-b", "submitter")}
ROLES |= {"vera": ("team-a", "viewer"), "olga": ("ops", "operator")}
STREAM_SECONDS = 0.3
"""For the first answer of a stream that waits for more."""


class World:
    """A manager with a run of team-a and one of team-b."""

    def __init__(self, served: Serving, channel: grpc.aio.Channel, folder: Path, **tokens: str):
        self.served, self.channel, self.tokens = served, channel, tokens
        self.good = specification(folder)
        """A specification that is admitted."""
        self.runs: dict[str, str] = {}
        """Owner -> run id."""
        self._numbers = itertools.count()

    async def renew(self) -> None:
        """Both owners have one run, which is not ended."""
        runs = self.served.runs
        listed = (await runs.list(LOCAL, page_size=1000))[0]
        # A call may have deleted one that had just ended.
        going = {run.run_id for run in listed if not run.state.has_ended}
        self.runs = {owner: known for owner, known in self.runs.items() if known in going}
        records = self.served.manager.records
        for run_id in {run.run_id for run in listed} - set(self.runs.values()):
            if run_id in going:
                await runs.cancel(LOCAL, run_id)
                await until(lambda run_id=run_id: records.get(run_id).state.has_ended)
            await runs.delete(LOCAL, run_id)
        for owner in {"team-a", "team-b"} - self.runs.keys():
            client = ClientIdentity(owner, owner, Role.SUBMITTER)
            request_id = f"world-{next(self._numbers)}"
            self.runs[owner] = (await runs.create(client, request_id, self.good)).run_id

    async def hear_from_manager(self) -> None:
        """Returns with the answer to a call of its own: earlier ones were heard by then."""
        list_runs = self.channel.unary_unary(f"/{SERVICE.full_name}/ListRuns")
        await list_runs(b"", metadata=bearer(self.tokens["olga"]), timeout=30)

    def wishes(self) -> dict[str, Any]:
        """What somebody asked of each run, None where it was deleted; the manager's own doings left out."""
        asked = {
            run.run_id: (run.goal, run.min_replicas, run.max_replicas, run.priority)
            for run in self.served.manager.records.all()
            if not run.is_deleted
        }
        return {owner: asked.get(run_id) for owner, run_id in self.runs.items()}


@asynccontextmanager
async def world(folder: Path) -> AsyncGenerator[World]:
    made = {name: make_client(name, *role) for name, role in ROLES.items()}
    clients = folder / "clients.yaml"
    clients.write_text("\n".join(line for _, line in made.values()), encoding="utf-8")
    allow = {"models": [str(folder)], "data": [str(folder)]}
    limits = {"runs": 5, "steps": 1000, "replicas": 4}
    launcher = EndingLauncher()
    async with (
        managing(
            folder / "runs", launcher, clients=str(clients), allow=allow, limits=limits
        ) as served,
        rpc.connect(served.address) as channel,
    ):
        tokens = {name: token for name, (token, _) in made.items()}
        launcher.records = served.manager.records
        at = World(served, channel, folder, **tokens)
        await at.renew()
        yield at


class EndingLauncher(FakeLauncher):
    """Of runs that never come to their first step, and end when they shall."""

    records: Records | None = None

    async def find(self, runs: Sequence[RunContext]) -> Mapping[str, Presence]:
        for run in self.records.all() if self.records else ():
            if run.goal is not Goal.RUN:
                self.there[run.run_id] = Presence.GONE
        return await super().find(runs)


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Runner, World]]:
    """One manager for all examples: it must stand them all."""
    with Runner() as runner:
        stack = AsyncExitStack()
        yield runner, runner.run(stack.enter_async_context(world(tmp_path_factory.mktemp("fuzz"))))
        runner.run(stack.aclose())


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),) if token else ()


@dataclass(frozen=True)
class Call:
    method: str
    who: str
    """A client's name; "" shows no token, "stranger" a wrong one."""
    fields: dict[str, Any]
    """"{team-a}" stands for its run, "{good}" for a good specification."""
    raw: bytes | None = None
    """In place of a message."""


TEXTS = st.sampled_from(
    [
        "",
        "{team-a}",
        "{team-b}",
        "{good}",
        "x",
        "../..",
        "%",
        "\0",
        "é" * 50,
        "a" * 5000,
        "team-a",
        "team-b",
        "launcher",
        "run.steps=5",
        "run.folder=/etc",
        "run.steps={",
        "[]",
        '["a", 1]',
        "first",
    ]
) | st.text(max_size=20)
NUMBERS = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
}


def value_of(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_STRING:
        return TEXTS
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.integers(-1, 20)
    low, high = NUMBERS[field.type]
    return st.integers(max(low, -3), 30) | st.sampled_from([low, high]) | st.integers(low, high)


def fields_of(descriptor: Descriptor) -> st.SearchStrategy[dict[str, Any]]:
    optional = {
        field.name: st.lists(value_of(field), max_size=3) if field.is_repeated else value_of(field)
        for field in descriptor.fields
    }
    if "run_id" not in optional:
        return st.fixed_dictionaries({}, optional=optional)
    run_id = st.sampled_from(["{team-a}", "{team-b}"])
    del optional["run_id"]
    known = st.fixed_dictionaries({"run_id": run_id}, optional=optional)
    return known | known | st.fixed_dictionaries({"run_id": TEXTS}, optional=optional)


def call_of(method: MethodDescriptor) -> st.SearchStrategy[Call]:
    whos = st.sampled_from([*ROLES, *ROLES, "", "stranger"])
    messages = st.builds(Call, st.just(method.name), whos, fields_of(method.input_type))
    broken = st.builds(
        Call, st.just(method.name), whos, st.just({}), st.binary(min_size=1, max_size=40)
    )
    return st.one_of(*[messages] * 9, broken)


calls = st.sampled_from(METHODS).flatmap(call_of)


def fill(value: Any, at: World) -> Any:
    if isinstance(value, list):
        return [fill(item, at) for item in value]
    if not isinstance(value, str):
        return value
    names = {"{good}": at.good} | {f"{{{owner}}}": run for owner, run in at.runs.items()}
    return names.get(value, value)


async def send(call: Call, at: World) -> tuple[grpc.StatusCode, str]:
    """Code and text of the answer; a stream's first message counts as OK."""
    method = SERVICE.methods_by_name[call.method]
    data = call.raw
    if data is None:
        message = message_factory.GetMessageClass(method.input_type)()
        for name, value in call.fields.items():
            filled = fill(value, at)
            if isinstance(filled, list):
                getattr(message, name).extend(filled)
            else:
                setattr(message, name, filled)
        data = message.SerializeToString()
    path = f"/{SERVICE.full_name}/{call.method}"
    metadata = bearer({**at.tokens, "": "", "stranger": "0" * 64}[call.who])
    try:
        if not method.server_streaming:
            await at.channel.unary_unary(path)(data, metadata=metadata, timeout=30)
            return grpc.StatusCode.OK, ""
        answers = at.channel.unary_stream(path)(data, metadata=metadata)
        reading = asyncio.ensure_future(answers.read())
        try:
            await asyncio.wait([reading], timeout=STREAM_SECONDS)
            if not reading.done():  # it waits for what comes, or the machine is busy
                await at.hear_from_manager()
                await asyncio.wait([reading], timeout=STREAM_SECONDS / 10)
            if not reading.done():
                return grpc.StatusCode.OK, ""
            await reading
            if answers.done():
                code = await answers.code()
                return code, await answers.details() or ""
        finally:
            answers.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return grpc.StatusCode.OK, ""
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""


def names_a_field(method: str, text: str) -> bool:
    """Each line begins with it: a field of the message (run is run_id's), a key of the
    specification, or the method, where nothing of it may be called."""
    message = SERVICE.methods_by_name[method].input_type
    known = {*message.fields_by_name, *message.oneofs_by_name, "request", method, "run"}
    known |= {*RunConfig.model_fields} if method == "CreateRun" else set()
    firsts = (re.match(r"\w*", line) for line in text.splitlines())
    return all(first and first[0] in known for first in firsts)


async def check(call: Call, at: World) -> None:
    await at.renew()
    before = at.wishes()
    code, text = await send(call, at)
    shown = f"{call}: {code} {text}"
    if call.who in ("", "stranger"):
        assert code is grpc.StatusCode.UNAUTHENTICATED, shown
    else:
        assert code in CANONICAL, shown
    assert code is grpc.StatusCode.OK or names_a_field(call.method, text), shown
    assert not any(token in text for token in at.tokens.values()), shown
    owner, role = ROLES.get(call.who, ("", ""))
    if role == "viewer" and call.method in CHANGING:
        assert code is grpc.StatusCode.PERMISSION_DENIED, shown
    others = {other for other in at.runs if role != "operator" and other != owner}
    if role == "viewer" or call.method in READING:
        others = set(at.runs)
    after = at.wishes()
    assert [before[other] for other in others] == [after[other] for other in others], shown
    foreign = [f"{{{other}}}" for other in others if other != owner]
    if role != "operator" and call.fields.get("run_id") in foreign and call.raw is None:
        assert code is not grpc.StatusCode.OK, shown


@given(call=calls)
@example(call=Call("WatchRun", "bob", {"run_id": "{team-a}"}))
@example(call=Call("WatchRun", "anna", {"run_id": "{team-a}", "after_sequence": 2**64 - 1}))
@example(call=Call("GetLedger", "anna", {"run_id": "{team-a}", "group": 2**64 - 1}))
@example(call=Call("DeleteRun", "anna", {"run_id": "{team-a}"}))
@example(call=Call("CancelRun", "anna", {"run_id": "{team-a}"}))
@example(call=Call("PauseRun", "bob", {"run_id": "{team-a}"}))
@example(call=Call("ResumeRun", "anna", {"run_id": "{team-a}"}))
@example(call=Call("GetSamples", "anna", {"run_id": "{team-a}", "trained_step": 3}))
@example(call=Call("GetLogs", "anna", {"run_id": "{team-a}", "process": "../../clients"}))
@example(call=Call("ListRuns", "anna", {"page_token": '["a", 1]'}))
@example(call=Call("ListRuns", "anna", {"owner": "team-b"}))
@example(call=Call("CreateRun", "anna", {"request_id": "new", "config": "{good}"}))
@example(call=Call("CreateRun", "anna", {"request_id": "first", "config": "x: 1"}))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_refusal_is_a_canonical_code_that_names_the_field(
    at: tuple[Runner, World], call: Call
) -> None:
    """In the order that comes: what one call did is there for the next."""
    runner, world = at
    runner.run(check(call, world))


async def test_a_request_that_is_too_long_is_refused_and_the_next_one_answered(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as at:
        fields = {"request_id": "long", "config": "#" * (MAX_REQUEST_BYTES + 1)}
        code, text = await send(Call("CreateRun", "anna", fields), at)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, text
        fields["config"] = "#" * ((1 << 20) + 1)
        code, text = await send(Call("CreateRun", "anna", fields), at)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert text.startswith("config: 1048577 bytes")
        code, _ = await send(Call("GetRun", "anna", {"run_id": "{team-a}"}), at)
        assert code is grpc.StatusCode.OK
