"""RunService for asyncio: submit runs, watch them, steer them."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import grpc
import yaml

from trimaran.clients.access import Access
from trimaran.clients.base import Client
from trimaran.config import RunConfig, load_tree, resolve_tree
from trimaran.errors import DeadlineError, InputError, UnavailableError, UnreachableError
from trimaran.run.answers import Checkpoint, LedgerAnswer, RunSamples
from trimaran.run.runs import EventKind, Run, RunEvent, RunState, metric_rows
from trimaran.v1 import run_pb2 as pb
from trimaran.v1 import run_pb2_grpc
from trimaran.wire import rpc
from trimaran.wire import run_messages as run_wire

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 1.0
"""Pauses between tries of a call that has no answer."""
NOTICE_SECONDS = 1.0
"""After so long without an answer `on_wait` is called."""
QUIET_SECONDS = 60.0
"""Silence of a watched run after which the manager is asked whether it is still there."""
RECONNECT_SECONDS = 0.3
POLL_SECONDS = 2.0

TLS_FAILURES = {
    "Hostname Verification": "its certificate is not for this name; ask it by a name that it holds",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is signed by no authority that you trust; name the"
    " file of its authority: ca=, TRIMARAN_CA",
    "WRONG_VERSION_NUMBER": "it does not speak TLS; ask it without ca=, TRIMARAN_CA",
    "Socket closed": "it closes the connection; where it speaks TLS, name the file of its authority"
    " (ca=, TRIMARAN_CA), and your certificate where it asks for one (TRIMARAN_CERTIFICATE,"
    " TRIMARAN_KEY)",
}
"""Words in gRPC's error where a server listens but no connection is made, and what they mean."""

Config = str | PathLike[str] | Mapping[str, Any] | RunConfig
Request = TypeVar("Request")


class AsyncRunClient(Client):
    """Submits, watches and steers the runs of a manager. `RunClient` is the same without `await`.

    Example:
        async with AsyncRunClient("127.0.0.1:7900") as client:
            run = await client.create_run("run.yaml", ["run.seed=2"])
            async for event in client.watch_run(run.run_id):
                print(event.kind, event.run.step, event.values)

    What goes wrong raises a class of `trimaran.errors`. A call that may be made twice is made again
    while no manager answers, until `timeout`.
    """

    _service = run_pb2_grpc.RunServiceStub

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | Path | None = None,
        ca: str | Path | None = None,
        timeout: float = 30.0,
        patience: float | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        """`address`: host:port; else TRIMARAN_MANAGER, else 127.0.0.1:7900.

        `token`: the token, or the Path of a file that holds it and that only its owner reads; else
        the file that TRIMARAN_TOKEN_FILE names. `ca`: PEM file of the certificates that TLS trusts;
        else TRIMARAN_CA; without one the connection is not encrypted. TRIMARAN_CERTIFICATE and
        TRIMARAN_KEY: for a manager that asks for a certificate. `timeout`: seconds for a call with
        all its tries; `patience`: of these, while no manager can be reached at all (default: all of them).
        `on_wait`: called with the address when a call has no answer after a second. Raises InputError.
        """
        access = Access.find(address, token, ca)
        super().__init__(access.address, access.trust)
        self.timeout = timeout
        self._patience = timeout if patience is None else patience
        self._on_wait = on_wait

    async def create_run(
        self,
        config: Config,
        overrides: Sequence[str] = (),
        *,
        priority: int = 0,
        request_id: str | None = None,
    ) -> Run:
        """Queues a run.

        `config`: a YAML file, or what it holds. Relative paths in a file start at its folder, those
        of `overrides` ("key.sub=value") and of a mapping at the working directory. Higher
        `priority` starts first. The same `request_id` twice is one run; it is random where it is
        not given.
        """
        request = _request(
            pb.CreateRunRequest,
            request_id=request_id or uuid.uuid4().hex,
            config=_as_yaml(config, overrides),
            priority=priority,
        )
        return run_wire.decode_run((await self._call(self._stub.CreateRun, request)).run)

    async def get_run(self, run_id: str) -> Run:
        return await self._ask(self._stub.GetRun, pb.GetRunRequest(run_id=run_id))

    async def get_config(self, run_id: str) -> dict[str, Any]:
        """The run's whole configuration, with its overrides and the defaults."""
        request = pb.GetRunRequest(run_id=run_id, with_config=True)
        return json.loads((await self._call(self._stub.GetRun, request)).config)

    async def list_runs(
        self, states: Iterable[RunState | str] = (), owner: str = "", page_size: int = 100
    ) -> AsyncIterator[Run]:
        """Newest first; those of `states` and `owner`, where these are given."""
        request = _request(
            pb.ListRunsRequest,
            states=[run_wire.encode_state(RunState(state)) for state in states],
            owner=owner,
            page_size=page_size,
        )
        while True:
            page: pb.ListRunsResponse = await self._call(self._stub.ListRuns, request)
            for run in page.runs:
                yield run_wire.decode_run(run)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def watch_run(
        self,
        run_id: str,
        after: int = 0,
        *,
        until_now: bool = False,
        outage_timeout: float = 300.0,
        quiet_timeout: float = QUIET_SECONDS,
    ) -> AsyncIterator[RunEvent]:
        """Every event behind the sequence number `after`, until the run ends; also of ended runs.

        `until_now`: only those that there are. When the connection breaks, or the manager is
        started again, it goes on behind the last event. Raises UnavailableError or DeadlineError
        when no manager answers for `outage_timeout` seconds; after `quiet_timeout` seconds without
        an event the manager is asked whether it is there.
        """
        request = _request(
            pb.WatchRunRequest, run_id=run_id, after_sequence=after, until_now=until_now
        )
        while True:
            event, broke = None, False
            try:
                responses = rpc.stream(self._stub.WatchRun, request, quiet_timeout)
                async with aclosing(responses):
                    async for response in responses:
                        event = run_wire.decode_event(response.event)
                        request.after_sequence = max(request.after_sequence, event.sequence)
                        yield event
            except (UnavailableError, DeadlineError):
                broke = True
            if not broke and (until_now or (event and event.kind is EventKind.FINISHED)):
                return
            ask = pb.GetRunRequest(run_id=run_id)
            run = await self._ask(self._stub.GetRun, ask, outage_timeout)
            if not broke and run.state.has_ended:
                return  # all of it was seen before
            await asyncio.sleep(RECONNECT_SECONDS)

    async def wait_run(
        self, run_id: str, timeout: float | None = None, outage_timeout: float = 300.0
    ) -> Run:
        """The run once it has ended. Raises DeadlineError after `timeout` seconds, if any are given.

        `outage_timeout`: as `watch_run` has it.
        """
        try:
            async with asyncio.timeout(timeout):
                request = pb.GetRunRequest(run_id=run_id)
                while True:
                    run = await self._ask(self._stub.GetRun, request, outage_timeout)
                    if run.state.has_ended:
                        return run
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            if isinstance(error, DeadlineError):
                raise
            raise DeadlineError(f"{run_id}: has not ended within {timeout:g} s") from None

    async def pause_run(self, run_id: str) -> Run:
        """After the step under way the run saves a checkpoint, and its processes end."""
        return await self._ask(self._stub.PauseRun, pb.PauseRunRequest(run_id=run_id))

    async def resume_run(self, run_id: str) -> Run:
        """A run that is paused, cancelled or failed is queued again, and goes on from its ledger."""
        return await self._ask(self._stub.ResumeRun, pb.ResumeRunRequest(run_id=run_id))

    async def cancel_run(self, run_id: str) -> Run:
        """The run ends once the batch that trains is live, with its checkpoint and summary. It waits for no other."""
        return await self._ask(self._stub.CancelRun, pb.CancelRunRequest(run_id=run_id))

    async def delete_run(self, run_id: str) -> None:
        """Removes an ended run's records and folder. Nothing brings them back, and nothing asks
        twice: where the answer is lost, `get_run` says whether it is gone."""
        await rpc.call(self._stub.DeleteRun, pb.DeleteRunRequest(run_id=run_id), self.timeout)

    async def scale_run(self, run_id: str, min_replicas: int, max_replicas: int) -> Run:
        """How many replicas the run may have, while it runs or waits."""
        request = _request(
            pb.ScaleRunRequest, run_id=run_id, min_replicas=min_replicas, max_replicas=max_replicas
        )
        return await self._ask(self._stub.ScaleRun, request)

    async def metrics(self, run_id: str) -> list[dict[str, Any]]:
        """A row for each step and each validation so far: `kind`, `step`, `time` (unix seconds) and
        its metrics, as docs/metrics.md names them. `pandas.DataFrame` takes it as it is.

        A step that was trained again after a resume has one row, the later one. Of a long run the
        first rows may be gone with their events; a warning then says so, and the run's
        metrics.jsonl has all.
        """
        events = [event async for event in self.watch_run(run_id, until_now=True)]
        for event in events:
            if event.kind is EventKind.MISSED:
                logger.warning("run %s: %s; the run's metrics.jsonl has all", run_id, event.text)
        return metric_rows(events)

    async def list_checkpoints(self, run_id: str) -> tuple[Checkpoint, ...]:
        request = pb.ListCheckpointsRequest(run_id=run_id)
        answer = await self._call(self._stub.ListCheckpoints, request)
        return tuple(run_wire.decode_checkpoint(each) for each in answer.checkpoints)

    async def get_samples(
        self,
        run_id: str,
        *,
        validation_step: int | None = None,
        trained_step: int | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> RunSamples:
        """Answers of one step, with their rewards; of the last validation where none is named.
        `offset`: so many of the step's first ones are left out."""
        request = _request(
            pb.GetSamplesRequest,
            run_id=run_id,
            validation_step=validation_step,
            trained_step=trained_step,
            limit=limit,
            offset=offset,
        )
        return run_wire.decode_samples(await self._call(self._stub.GetSamples, request))

    async def get_logs(
        self,
        run_id: str,
        process: str = "",
        lines: int = 100,
        follow: bool = False,
        *,
        outage_timeout: float = 300.0,
        quiet_timeout: float = QUIET_SECONDS,
    ) -> AsyncIterator[str]:
        """The last lines of a process's log ("rollout-0"; "" is the launcher's), oldest first.

        `follow`: and what is written from now on, until the run ends; when the connection breaks, or
        the manager is started again, it goes on at its place. `outage_timeout`, `quiet_timeout`: as
        `watch_run` has them, of a log that is followed.
        """
        request = _request(
            pb.GetLogsRequest, run_id=run_id, process=process, lines=lines, follow=follow
        )
        while True:
            idle = quiet_timeout if follow else self.timeout
            responses = rpc.stream(self._stub.GetLogs, request, idle)
            try:
                async with aclosing(responses):
                    async for response in responses:
                        for line in response.lines:
                            yield line
                        request.after_position = response.position
                return
            except (UnavailableError, DeadlineError):
                if not follow:
                    raise
            await self._ask(self._stub.GetRun, pb.GetRunRequest(run_id=run_id), outage_timeout)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def list_logs(self, run_id: str) -> tuple[str, ...]:
        """Which processes of the run have a log."""
        request = _request(pb.GetLogsRequest, run_id=run_id, lines=1)
        responses = rpc.stream(self._stub.GetLogs, request, self.timeout)
        async with aclosing(responses):
            async for response in responses:
                return tuple(response.processes)
        return ()

    async def get_ledger(
        self, run_id: str, group: int | None = None, *, timeout: float | None = None
    ) -> LedgerAnswer:
        """The life of `group`; without one, whether the whole ledger is sound. `timeout`: seconds for
        the manager to read it, where the client's are too few."""
        if group is None:
            request = _request(pb.GetLedgerRequest, run_id=run_id, verify=True)
        else:
            request = _request(pb.GetLedgerRequest, run_id=run_id, group=group)
        return run_wire.decode_ledger(await self._call(self._stub.GetLedger, request, timeout))

    async def _ask(self, method: Any, request: Any, outage_timeout: float | None = None) -> Run:
        """A call that is answered with the run. `outage_timeout`: how long no manager need answer."""
        answer = await self._call(method, request, outage_timeout, outage_timeout)
        return run_wire.decode_run(answer.run)

    async def _call(
        self,
        method: Any,
        request: Any,
        timeout: float | None = None,
        patience: float | None = None,
    ) -> Any:
        """A call that may be made twice. `patience`: as the client's; what a manager cannot answer now
        is asked again for the client's `timeout`, or for `patience` where that is longer."""
        now = asyncio.get_running_loop().time
        timeout = self.timeout if timeout is None else timeout
        patience = self._patience if patience is None else patience
        deadline = now() + timeout
        again_until = min(deadline, now() + max(self.timeout, patience))
        pause, gone_since, last = FIRST_PAUSE_SECONDS, math.inf, None
        with self._telling():
            while True:
                try:
                    return await rpc.call(method, request, max(deadline - now(), 0.001))
                except DeadlineError:
                    if last is None and self._is_connected:
                        raise
                    # An earlier try says more than that the time is up.
                    last = last or UnreachableError(f"no connection within {timeout:g} s")
                    raise self._explain(last) from None
                except UnavailableError as error:
                    last, until = error, again_until
                    if isinstance(error, UnreachableError):
                        gone_since = min(gone_since, now())
                        until = min(deadline, gone_since + patience)
                    if (left := until - now()) <= 0:
                        raise self._explain(error) from None
                await asyncio.sleep(min(pause, left))
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    @contextmanager
    def _telling(self) -> Generator[None]:
        """Calls `on_wait` once, if the answer takes its time."""
        if self._on_wait is None:
            yield
            return
        loop = asyncio.get_running_loop()
        notice = loop.call_later(NOTICE_SECONDS, self._on_wait, self.address)
        try:
            yield
        finally:
            notice.cancel()

    @property
    def _is_connected(self) -> bool:
        return self._channel.get_state() is grpc.ChannelConnectivity.READY

    def _explain(self, error: UnavailableError) -> UnavailableError:
        """A manager's own errors stay as they are; that none was reached is said in our words."""
        if not isinstance(error, UnreachableError):
            return error
        reason = str(error).rpartition("last error: ")[2]
        for sign, words in TLS_FAILURES.items():
            if sign in reason:
                return UnreachableError(f"the manager at {self.address}: {words}")
        reason = "nothing listens there" if "Connection refused" in reason else reason
        return UnreachableError(
            f"no manager answers at {self.address} ({reason}). One that was just started listens only"
            f" once its predecessor's lease has ended, 10 s after a kill: ask again."
            " Else start one with `trimaran up`, or name the address of one: --manager,"
            " TRIMARAN_MANAGER"
        )


def _request(kind: Callable[..., Request], **fields: Any) -> Request:
    """Raises InputError naming the field whose value does not fit, such as a number of 65 bits."""
    try:
        return kind(**fields)
    except (ValueError, OverflowError):
        for name, value in fields.items():
            try:
                kind(**{name: value})
            except (ValueError, OverflowError) as error:
                raise InputError(f"{name}: {str(value)[:80]} cannot be sent ({error})") from None
        raise


def _as_yaml(config: Config, overrides: Sequence[str]) -> str:
    """With absolute paths: the manager has another working directory."""
    if isinstance(config, str | PathLike):
        tree = load_tree(config, overrides)
    else:
        values = config.model_dump(mode="json") if isinstance(config, RunConfig) else config
        tree = resolve_tree(values, Path.cwd(), overrides)
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
