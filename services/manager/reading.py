"""What clients may read of runs, whichever way they come: RunService, HTTP and `trimaran view` call this."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from services.manager.records import Managed
from services.manager.run_data.choice import ALL, Choice
from services.manager.run_data.ledger_answers import (
    ask_group,
    ask_scored,
    trained_samples,
    trained_steps,
    verify,
)
from services.manager.run_data.log_files import LogFile, LogLines, list_processes
from services.manager.run_data.metric_rows import RowCursor, RowPage, read_events, read_file
from services.manager.run_data.past_events import PastEvents, read_past
from services.manager.run_data.question_images import question_images
from services.manager.run_data.results import (
    list_checkpoints,
    saved_checkpoints,
    validation_samples,
    validation_steps,
)
from services.manager.run_data.run_stores import RunStores
from services.manager.run_data.tails import Tails, watch
from services.manager.run_data.timeline import Timeline, read_timeline
from services.manager.run_data.watchers import Watchers
from trimaran.clients import MetricsClient
from trimaran.config import parse_recorded
from trimaran.errors import (
    InputError,
    NotFoundError,
    StateError,
    UnauthenticatedError,
)
from trimaran.host.call_waits import locked
from trimaran.host.places import Place, fetch_file
from trimaran.run.answers import Checkpoint, LedgerAnswer, RunSamples
from trimaran.run.context import RunContext
from trimaran.run.launchers import LOG_NAME
from trimaran.run.place import run_place
from trimaran.run.runs import (
    EventKind,
    Run,
    RunEvent,
    RunState,
    endpoints_key,
    restarts_key,
)
from trimaran.run.weights import RunWeights, read_weights
from trimaran.telemetry.run_files import METRICS_NAME, TIMELINE_NAME
from trimaran.trust.access import ClientIdentity, Role, Trust
from trimaran.types import ScoredGroup

PAGE, MAX_PAGE = 100, 1000
SAMPLES, MAX_SAMPLES = 20, 1000
LINES, MAX_LINES = 100, 10000
FOLLOW_SECONDS = 0.5


class KnownRuns(Protocol):
    """Example: FoundRuns(Path("runs")).get("addition-20261120-120000")"""

    def get(self, run_id: str) -> Managed:
        """Raises NotFoundError."""
        ...

    def all(self) -> Sequence[Managed]: ...


class RunReader:
    """Every method takes the client first, and raises ForbiddenError for another owner's run and
    NotFoundError for one that there is not."""

    def __init__(self, records: KnownRuns, stores: RunStores, watchers: int) -> None:
        """`watchers`: the most of one client, at a time."""
        self._records, self._stores = records, stores
        self._tails = Tails(stores)
        self._watchers = Watchers(watchers)
        self._verifying: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One lock a client. A check keeps the event loop busy, one record after the other."""

    async def get(self, client: ClientIdentity, run_id: str) -> Run:
        return self._shown(self._of(client, run_id))

    async def config(self, client: ClientIdentity, run_id: str) -> Mapping[str, Any]:
        """The whole configuration, with the overrides and the defaults. Configurations hold no secrets:
        credentials come from the environment."""
        return self._of(client, run_id).config

    async def list(
        self,
        client: ClientIdentity,
        states: Sequence[RunState] = (),
        owner: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> tuple[list[Run], str]:
        """Newest first, and the token of the next page; "" on the last one."""
        if not 0 <= page_size <= MAX_PAGE:
            raise InputError(f"page_size: {page_size} is not between 0 and {MAX_PAGE}")
        if owner:
            client.check_owner(owner, f"owner {owner!r}")
        elif client.role is not Role.OPERATOR:
            owner = client.owner
        before = _read_token(page_token)
        found = sorted(
            (
                run
                for run in self._records.all()
                if not run.is_deleted
                and (not owner or run.owner == owner)
                and (not states or run.state in states)
                and (before is None or (run.created_at, run.run_id) < before)
            ),
            key=lambda run: (run.created_at, run.run_id),
            reverse=True,
        )
        page = found[: page_size or PAGE]
        more = len(found) > len(page)
        token = json.dumps([page[-1].created_at, page[-1].run_id]) if more else ""
        return [self._shown(run) for run in page], token

    async def events(
        self, client: ClientIdentity, run_id: str, after: int = 0, follow: bool = True
    ) -> AsyncGenerator[RunEvent]:
        """Every event behind `after` until the run ends, or (not `follow`) until now. Raises
        LimitError for more watchers of one client than the operator allows."""
        run = self._of(client, run_id)
        _check_sequence("after_sequence", after)
        over = (lambda: self._has_ended(run_id)) if follow else (lambda: True)
        with self._watchers.one_more(client.name):
            async with aclosing(watch(self._tails, run_id, run.store_url, after, over)) as events:
                async for event in events:
                    yield self._complete(run, event)

    async def metric_rows(self, client: ClientIdentity, run_id: str, after: RowCursor) -> RowPage:
        """Some of the steps and validations behind `after`; one that was made again comes again."""
        run = self._of(client, run_id)
        page = await asyncio.to_thread(read_file, Path(run.folder) / METRICS_NAME, after)
        if page is not None:
            return page
        try:
            async with self._stores.of(run.store_url) as store:
                return await read_events(store, run_id, after)
        except NotFoundError:
            return RowPage()  # it has not begun

    async def past_events(
        self,
        client: ClientIdentity,
        run_id: str,
        before: int = 0,
        kinds: Collection[EventKind] = (),
        limit: int = PAGE,
    ) -> PastEvents:
        """The newest ones, or those that come before the sequence number `before`."""
        run = self._of(client, run_id)
        async with self._stores.of(run.store_url) as store:
            past = await read_past(store, run_id, before, kinds, limit)
        events = tuple(self._complete(run, event) for event in past.events)
        return replace(past, events=events)

    async def timeline(
        self, client: ClientIdentity, run_id: str, seconds: float = 0.0, until: float = 0.0
    ) -> Timeline:
        """As `read_timeline`. Empty where the controller's host alone has it, which gives it away at the end."""
        run = self._of(client, run_id)
        path, place = Path(run.folder) / TIMELINE_NAME, _place(run)
        if place and run.state.has_ended and not path.is_file():
            with suppress(NotFoundError):
                await asyncio.to_thread(fetch_file, place, TIMELINE_NAME, path)
        return await asyncio.to_thread(read_timeline, path, seconds, until)

    async def checkpoints(self, client: ClientIdentity, run_id: str) -> list[Checkpoint]:
        run = self._of(client, run_id)
        async with self._stores.of(run.store_url) as store:
            saved = await saved_checkpoints(store, run_id)
        return await asyncio.to_thread(list_checkpoints, Path(run.folder), saved, _place(run))

    async def sample_steps(
        self, client: ClientIdentity, run_id: str
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Validations, and trained steps whose payloads are kept."""
        run = self._of(client, run_id)
        validated = await asyncio.to_thread(validation_steps, Path(run.folder), _place(run))
        return validated, await asyncio.to_thread(trained_steps, run)

    async def samples(
        self,
        client: ClientIdentity,
        run_id: str,
        validation_step: int | None = None,
        trained_step: int | None = None,
        limit: int = 0,
        offset: int = 0,
        choice: Choice = ALL,
    ) -> RunSamples:
        """Samples of a step, of the last validation by default; `offset` of the chosen ones are left out.
        Raises NotFoundError."""
        run = self._of(client, run_id)
        if not 0 <= limit <= MAX_SAMPLES:
            raise InputError(f"limit: {limit} is not between 0 and {MAX_SAMPLES}")
        folder, limit, place = Path(run.folder), limit or SAMPLES, _place(run)
        steps, trained = await self.sample_steps(client, run_id)
        if trained_step is not None:
            async with self._stores.of(run.store_url) as store:
                found = await trained_samples(store, run, trained_step, limit, offset, choice)
            return RunSamples(steps, trained, tuple(found[0]), found[1], trained_step)
        if not steps and validation_step is None:
            return RunSamples(steps, trained, ())
        step = steps[-1] if validation_step is None else validation_step
        asked = step, limit, offset, place, choice
        found = await asyncio.to_thread(validation_samples, folder, *asked)
        return RunSamples(steps, trained, tuple(found[0]), found[1], step)

    async def question_images(
        self, client: ClientIdentity, run_id: str, prompt_id: str
    ) -> Sequence[bytes]:
        """Those of a held-out prompt, from the run's dataset. Raises NotFoundError, and InputError where it is
        not on this host."""
        config = parse_recorded(self._of(client, run_id).config, source=f"run {run_id}")
        return await asyncio.to_thread(question_images, config, prompt_id)

    async def log_names(self, client: ClientIdentity, run_id: str) -> list[str]:
        """The processes that have a log."""
        return await asyncio.to_thread(list_processes, Path(self._of(client, run_id).folder))

    async def logs(
        self,
        client: ClientIdentity,
        run_id: str,
        process: str = "",
        lines: int = 0,
        follow: bool = False,
        after: int | None = None,
    ) -> AsyncGenerator[LogLines]:
        """The last lines, or those behind the position `after`, and with `follow` those that are
        written until the run ends. Raises LimitError as `events`, for those who follow."""
        run = self._of(client, run_id)
        if not 0 <= lines <= MAX_LINES:
            raise InputError(f"lines: {lines} is not between 0 and {MAX_LINES}")
        _check_sequence("after_position", after or 0)
        folder = Path(run.folder)
        context = await asyncio.to_thread(RunContext.in_folder, folder)
        if context.launcher == "external" and process not in ("", Path(LOG_NAME).stem):
            raise NotFoundError(
                f"run {run_id}: {process} writes its log where its engine keeps it: docker compose"
                " logs, kubectl logs; the launcher's alone is here"
            )
        log = await asyncio.to_thread(LogFile.of, folder, process, (context.trust.token,))
        if after is None:
            found = await asyncio.to_thread(log.tail, lines or LINES)
        else:
            found = await asyncio.to_thread(log.after, after)
        if not follow:
            yield found
            return
        with self._watchers.one_more(client.name):
            yield found
            while True:
                is_over = self._has_ended(run_id)
                found = await asyncio.to_thread(log.after, found.position)
                if found.lines:
                    yield found
                elif is_over:
                    return
                else:
                    await asyncio.sleep(FOLLOW_SECONDS)

    async def weights(self, client: ClientIdentity, run_id: str) -> RunWeights:
        """As weight sync has recorded them last."""
        run = self._of(client, run_id)
        try:
            async with self._stores.of(run.store_url) as store:
                return await read_weights(store, run_id)
        except NotFoundError:
            return RunWeights(None, ())  # it has just started

    async def processes(self, client: ClientIdentity, run_id: str) -> Mapping[str, str]:
        """Those that listen at the moment: their names and addresses."""
        run = self._of(client, run_id)
        if not run.state.has_processes:
            return {}
        # One that its engine has still to start has no address yet.
        addresses = await self._by_process(run, endpoints_key(run_id))
        return {name: address for name, address in addresses.items() if address}

    async def restarts(self, client: ClientIdentity, run_id: str) -> Mapping[str, int]:
        """How often its launcher has started a process again; those that it has not are left out."""
        return await self._by_process(self._of(client, run_id), restarts_key(run_id))

    async def _by_process(self, run: Managed, key: str) -> Mapping[str, Any]:
        try:
            async with self._stores.of(run.store_url) as store:
                record = await store.get(key)
        except NotFoundError:
            return {}  # it has just started
        return record.value if record else {}

    async def process_metrics(self, client: ClientIdentity, run_id: str, process: str) -> str:
        """What a process counts, in Prometheus' text format. Raises NotFoundError, and StateError where
        the process was started under another manager's token."""
        addresses = await self.processes(client, run_id)
        if process not in addresses:
            known = ", ".join(sorted(addresses)) or "none at the moment"
            raise NotFoundError(f"process: {run_id} has no {process!r}; there are: {known}")
        trust = await self._trust(self._of(client, run_id))
        try:
            async with MetricsClient(addresses[process], trust) as asked:
                return await asked.get_metrics()
        except UnauthenticatedError:
            raise StateError(
                f"run {run_id}: {process} has another token than this manager, which has taken the run"
                " over; pause and resume the run, and give all managers of the store one service_token"
            ) from None

    async def ledger_group(self, client: ClientIdentity, run_id: str, group: int) -> LedgerAnswer:
        run = self._of(client, run_id)
        _check_sequence("group", group)
        async with self._stores.of(run.store_url) as store:
            return await ask_group(store, run, group)

    async def scored_group(self, client: ClientIdentity, run_id: str, group: int) -> ScoredGroup:
        """A group with its tokens, as it was last scored. Raises NotFoundError where they are not kept."""
        run = self._of(client, run_id)
        _check_sequence("group", group)
        async with self._stores.of(run.store_url) as store:
            return await ask_scored(store, run, group)

    async def ledger_verify(self, client: ClientIdentity, run_id: str) -> LedgerAnswer:
        """It reads all of it, so it counts as watching while it lasts, and a client has one at work:
        others wait. Raises LimitError."""
        run = self._of(client, run_id)
        with self._watchers.one_more(client.name):
            async with (
                locked(self._verifying[client.name], "the check of another ledger for this client"),
                self._stores.of(run.store_url) as store,
            ):
                return await verify(store, run)

    def _of(self, client: ClientIdentity, run_id: str) -> Managed:
        run = self._records.get(run_id)
        client.check_owner(run.owner, f"run {run_id}")
        return run

    def _shown(self, run: Managed) -> Run:
        """A run whose store is full or away cannot say itself that it is held."""
        trouble = self._trouble(run) if run.state.has_processes else ""
        return replace(run.view, held=trouble) if trouble and not run.held else run.view

    def _trouble(self, run: Managed) -> str:
        """Why the run's store cannot be used; empty where it can."""
        return ""

    async def _trust(self, run: Managed) -> Trust:
        """What its processes are shown."""
        return (await asyncio.to_thread(RunContext.in_folder, Path(run.folder))).trust

    def _has_ended(self, run_id: str) -> bool:
        try:
            return self._records.get(run_id).state.has_ended
        except NotFoundError:
            return True

    def _complete(self, run: Managed, event: RunEvent | int) -> RunEvent:
        """With what only the manager knows of the run."""
        if isinstance(event, int):
            text = f"events up to {event} are not kept any more"
            return RunEvent(event, EventKind.MISSED, run.view, {}, text, time.time())
        known = {
            name: getattr(run, name)
            for name in ("name", "owner", "priority", "created_at", "folder", "num_steps")
        }
        words = {
            name: run.without_folder(getattr(event.run, name))
            for name in ("error", "remedy", "held", "doing")
        }
        is_path = event.kind is EventKind.CHECKPOINT
        text = event.text if is_path else run.without_folder(event.text)
        return replace(event, run=replace(event.run, **known, **words), text=text)


def _place(run: Managed) -> Place | None:
    return run_place(parse_recorded(run.config, source=f"run {run.run_id}"), run.run_id)


def _read_token(text: str) -> tuple[float, str] | None:
    if not text:
        return None
    try:
        created_at, run_id = json.loads(text)
        return float(created_at), str(run_id)
    except (ValueError, TypeError):
        raise InputError("page_token: not one of ours; give that of the answer before") from None


def _check_sequence(field: str, number: int) -> None:
    """Stores count in int64."""
    if not 0 <= number < 2**63:
        raise InputError(f"{field}: {number} is not between 0 and {2**63 - 1}")
