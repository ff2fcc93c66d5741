"""What clients may ask of the manager, whichever way they come: RunService and HTTP call this."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.manager.admission.admission import check_request_id
from services.manager.admission.costs import check_costs, check_kept, check_owner, host_memory_gib
from services.manager.audit import audited
from services.manager.manager import Manager
from services.manager.reconcile import ended
from services.manager.records import Managed
from services.manager.run_data.ledger_answers import (
    ask_group,
    trained_samples,
    trained_steps,
    verify,
)
from services.manager.run_data.log_files import LogFile, LogLines, list_processes
from services.manager.run_data.results import (
    list_checkpoints,
    saved_checkpoints,
    validation_samples,
    validation_steps,
)
from services.manager.run_data.tails import Tails, watch
from services.manager.run_data.watchers import Watchers
from services.manager.scheduling.device_memory import check_memory
from services.manager.scheduling.needs import check_fits, find_needs
from services.manager.scheduling.pools import Ask, Need
from services.manager.settings import ManagerSettings
from trimaran.clients import MetricsClient
from trimaran.config import RunConfig, parse_config
from trimaran.errors import (
    AlreadyExistsError,
    InputError,
    LimitError,
    NotFoundError,
    StateError,
    UnauthenticatedError,
    UnavailableError,
)
from trimaran.host.call_waits import locked
from trimaran.host.places import Place
from trimaran.run.answers import Checkpoint, LedgerAnswer, RunSamples
from trimaran.run.context import RunContext
from trimaran.run.launchers import LOG_NAME, check_hosts
from trimaran.run.place import run_place
from trimaran.run.runs import (
    EventKind,
    Goal,
    Run,
    RunEvent,
    RunState,
    endpoints_key,
)
from trimaran.store import StoreError, StoreFullError, run_store_url
from trimaran.trust.access import TOKEN_NAME, ClientIdentity, Role

logger = logging.getLogger(__name__)

PAGE, MAX_PAGE = 100, 1000
SAMPLES, MAX_SAMPLES = 20, 1000
LINES, MAX_LINES = 100, 10000
FOLLOW_SECONDS = 0.5
DELETE_SECONDS = 10.0
EARLIER = "the manager's store, for which an earlier run waits,"

Admit = Callable[[str, Sequence[str]], RunConfig]
"""A run's YAML and its overrides, checked against what the operator allows. Raises InputError,
ForbiddenError or LimitError."""


class Runs:
    """Every method takes the client first, and raises ForbiddenError for another owner's run and
    NotFoundError for one that there is not.

    Example:
        run = await runs.create(LOCAL, "request-1", yaml_text, ["run.seed=2"], priority=0)
        async for event in runs.events(LOCAL, run.run_id, after=0):
            print(event.kind, event.values)
    """

    def __init__(
        self,
        manager: Manager,
        settings: ManagerSettings,
        admit: Admit,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._manager, self._settings, self._admit = manager, settings, admit
        self._records, self._stores = manager.records, manager.stores
        self._tails = Tails(manager.stores)
        self._watchers = Watchers(settings.limits.watchers)
        self._counting = asyncio.Lock()
        """Held from the count of an owner's runs until one more is recorded."""
        self._verifying: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One lock a client. A check keeps the event loop busy, one record after the other."""
        self._clock = clock

    @audited
    async def create(
        self,
        client: ClientIdentity,
        request_id: str,
        config: str,
        overrides: Sequence[str] = (),
        priority: int = 0,
    ) -> Run:
        """Queues a run; the same request id of the same owner is the same run.

        Raises InputError, ForbiddenError, LimitError; AlreadyExistsError where the request id was
        another specification's, and UnavailableError while its run is being deleted: once that is
        gone, the request id is free again.
        """
        check_request_id(request_id)
        asked = _digest(config, overrides, priority)
        # Before what the operator allows by now: who asks again was let in already.
        if (known := await self._known(client.owner, request_id, asked)) is not None:
            return known.view
        if abs(priority) > self._settings.limits.priority:
            most = self._settings.limits.priority
            raise InputError(f"priority: {priority} is not between {-most} and {most}")
        checked = await asyncio.to_thread(self._admit, config, overrides)
        needs = await asyncio.to_thread(self._find_needs, checked)
        async with locked(self._counting, EARLIER):
            if (known := await self._known(client.owner, request_id, asked)) is not None:
                return known.view
            self._check_number(client.owner)
            self._check_kept(client.owner)
            run_id = await asyncio.to_thread(self._new_id, checked.run.name, self._clock())
            made = self._make(client, request_id, checked, priority, run_id, needs)
            made = replace(made, asked=asked)
            await self._records.add(made)
        await self._manager.prepared(made.run_id)
        return made.view

    async def _known(self, owner: str, request_id: str, asked: str) -> Managed | None:
        """The run of an earlier request. It is compared with what the client sent, not with what came of
        it: that changes with the operator's configuration and with Trimaran's version."""
        known = await self._records.find_request(owner, request_id)
        if known is None:
            return None
        if known.is_deleted:
            raise UnavailableError(
                f"request_id: {request_id} is that of {known.run_id}, which is being deleted; ask"
                " again, or choose a new one"
            )
        if known.asked not in ("", asked):
            raise AlreadyExistsError(
                f"request_id: {request_id} is that of {known.run_id}, which has another"
                " specification or priority; choose a new one"
            )
        return known

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

    @audited
    async def pause(self, client: ClientIdentity, run_id: str) -> Run:
        """Raises StateError for a run that has ended or is being cancelled."""

        def make(run: Managed) -> Managed:
            if run.state in (RunState.PAUSED, RunState.PAUSING):
                return run
            is_queued = run.state is RunState.QUEUED
            state = RunState.PAUSED if is_queued else RunState.PAUSING
            return run.go(state, goal=Goal.PAUSE, asked_by=client.name)

        return await self._steer(client, run_id, make)

    @audited
    async def resume(self, client: ClientIdentity, run_id: str) -> Run:
        """Raises StateError for a run that has succeeded, or whose processes are still ending,
        InputError where the pools are too small for it by now, and LimitError where its owner has
        too many others, or where it has ended and costs more than is allowed by now.

        A run that is paused was let in, and stays so.
        """
        run = self._of(client, run_id)
        if run.state in (RunState.FAILED, RunState.CANCELLED):
            await asyncio.to_thread(self._check_costs, run)

        def make(run: Managed) -> Managed:
            if run.state in (RunState.QUEUED, RunState.STARTING, RunState.RUNNING):
                return run
            check_fits(run.ask, self._manager.pools, f"run {run_id}")
            if run.state.has_ended:
                self._check_number(run.owner)
            cleared = {"error": "", "remedy": "", "ended_at": 0.0, "queued_at": self._clock()}
            return run.go(RunState.QUEUED, goal=Goal.RUN, asked_by=client.name, **cleared)

        async with locked(self._counting, EARLIER):
            resumed = await self._records.change(run_id, make)
        return await self._announce(resumed)

    @audited
    async def cancel(self, client: ClientIdentity, run_id: str) -> Run:
        """Raises StateError for a run that has succeeded or failed."""

        def make(run: Managed) -> Managed:
            if run.state in (RunState.CANCELLED, RunState.CANCELLING):
                return run
            asked = replace(run, goal=Goal.CANCEL, asked_by=client.name)
            if run.state in (RunState.QUEUED, RunState.PAUSED):
                return ended(asked, RunState.CANCELLED, self._clock())
            return asked.go(RunState.CANCELLING)

        return await self._steer(client, run_id, make)

    @audited
    async def scale(
        self, client: ClientIdentity, run_id: str, min_replicas: int, max_replicas: int
    ) -> Run:
        """Raises InputError, LimitError, and StateError for a run that has ended."""
        most, devices = self._settings.limits.replicas, self._settings.limits.devices
        if not 1 <= min_replicas <= max_replicas:
            raise InputError(
                f"min_replicas {min_replicas}, max_replicas {max_replicas}: must be 1 or more, and the"
                " first not more than the second"
            )
        if most and max_replicas > most:
            raise LimitError(f"max_replicas: {max_replicas}, and {most} are allowed")
        self._check_memory(self._of(client, run_id), max_replicas)

        def make(run: Managed) -> Managed:
            if run.state.has_ended:
                raise StateError(f"run {run_id}: has {run.state}; resume it before it is scaled")
            if not run.trainer.count and {min_replicas, max_replicas} != {run.min_replicas}:
                raise InputError(
                    f"min_replicas {min_replicas}, max_replicas {max_replicas}: with run.pools colocated the"
                    f" run has {run.min_replicas}, on the devices of its trainer; start another run"
                )
            scaled = replace(run, min_replicas=min_replicas, max_replicas=max_replicas)
            check_fits(scaled.ask, self._manager.pools, "min_replicas")
            if 0 < devices < scaled.ask.num_devices:
                raise LimitError(
                    f"min_replicas: {min_replicas} need {scaled.ask.num_devices} devices with the"
                    f" trainer's, and {devices} are allowed"
                )
            return scaled

        scaled = await self._records.change(run_id, make)
        text = f"scaled to {min_replicas}:{max_replicas} by {client.name}"
        return await self._announce(scaled, text)

    @audited
    async def delete(self, client: ClientIdentity, run_id: str) -> None:
        """Raises StateError for a run that has not ended."""

        def make(run: Managed) -> Managed:
            if run.state is RunState.CANCELLING:
                raise StateError(f"run {run_id}: is cancelling; delete it once it has ended")
            if not run.state.has_ended:
                raise StateError(f"run {run_id}: is {run.state}; cancel it before it is deleted")
            return replace(run, is_deleted=True)

        self._of(client, run_id)
        await self._records.change(run_id, make)
        with suppress(TimeoutError):  # what is left by then is removed later
            await self._records.wait_until_removed(run_id, DELETE_SECONDS)

    async def checkpoints(self, client: ClientIdentity, run_id: str) -> list[Checkpoint]:
        run = self._of(client, run_id)
        async with self._stores.of(run.store_url) as store:
            saved = await saved_checkpoints(store, run_id)
        return await asyncio.to_thread(list_checkpoints, Path(run.folder), saved, _place(run))

    async def samples(
        self,
        client: ClientIdentity,
        run_id: str,
        validation_step: int | None = None,
        trained_step: int | None = None,
        limit: int = 0,
        offset: int = 0,
    ) -> RunSamples:
        """Samples of a step, of the last validation by default; `offset` are left out. Raises NotFoundError."""
        run = self._of(client, run_id)
        if not 0 <= limit <= MAX_SAMPLES:
            raise InputError(f"limit: {limit} is not between 0 and {MAX_SAMPLES}")
        folder, limit, place = Path(run.folder), limit or SAMPLES, _place(run)
        steps = await asyncio.to_thread(validation_steps, folder, place)
        trained = await asyncio.to_thread(trained_steps, run)
        if trained_step is not None:
            async with self._stores.of(run.store_url) as store:
                found = await trained_samples(store, run, trained_step, limit, offset)
            return RunSamples(steps, trained, tuple(found[0]), found[1], trained_step)
        if not steps and validation_step is None:
            return RunSamples(steps, trained, ())
        step = steps[-1] if validation_step is None else validation_step
        found = await asyncio.to_thread(validation_samples, folder, step, limit, offset, place)
        return RunSamples(steps, trained, tuple(found[0]), found[1], step)

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
        if self._settings.launcher == "external" and process not in ("", Path(LOG_NAME).stem):
            raise NotFoundError(
                f"run {run_id}: {process} writes its log where its engine keeps it: docker compose"
                " logs, kubectl logs; the launcher's alone is here"
            )
        secrets = await asyncio.to_thread(_secrets, folder)
        log = await asyncio.to_thread(LogFile.of, folder, process, secrets)
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

    async def processes(self, client: ClientIdentity, run_id: str) -> Mapping[str, str]:
        """Those that listen at the moment: their names and addresses."""
        run = self._of(client, run_id)
        if not run.state.has_processes:
            return {}
        try:
            async with self._stores.of(run.store_url) as store:
                record = await store.get(endpoints_key(run_id))
        except NotFoundError:
            return {}  # it has just started
        # One that its engine has still to start has no address yet.
        return (
            {name: address for name, address in record.value.items() if address} if record else {}
        )

    async def process_metrics(self, client: ClientIdentity, run_id: str, process: str) -> str:
        """What a process counts, in Prometheus' text format. Raises NotFoundError, and StateError where
        the process was started under another manager's token."""
        addresses = await self.processes(client, run_id)
        if process not in addresses:
            known = ", ".join(sorted(addresses)) or "none at the moment"
            raise NotFoundError(f"process: {run_id} has no {process!r}; there are: {known}")
        await self._manager.prepared(run_id)  # a run of another manager's has no token here before
        folder = Path(self._of(client, run_id).folder)
        trust = (await asyncio.to_thread(RunContext.in_folder, folder)).trust
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

    def _check_number(self, owner: str) -> None:
        own = [run for run in self._records.all() if run.owner == owner]
        count = sum(not run.state.has_ended for run in own)
        check_owner(owner, count, self._settings.limits)

    def _check_kept(self, owner: str) -> None:
        kept = [r for r in self._records.all() if r.owner == owner and not r.is_deleted]
        check_kept(owner, len(kept), self._settings.limits)

    def _check_costs(self, run: Managed) -> None:
        config = parse_config(run.config, source=f"run {run.run_id}")
        scaled = {"replicas": run.min_replicas, "max_replicas": run.max_replicas}
        rollout = config.rollout.model_copy(update=scaled)
        now = config.model_copy(update={"rollout": rollout})
        check_costs(now, self._settings.limits)

    def _check_memory(self, run: Managed, replicas: int) -> None:
        if not (most := self._settings.limits.host_memory_gib):
            return
        config = parse_config(run.config, source=f"run {run.run_id}")
        if most < (wanted := host_memory_gib(config, replicas)):
            raise LimitError(
                f"max_replicas: {replicas} need {wanted:,.6g} GiB of the host's memory with the reward"
                f" workers and the answers under way, and {most:g} are allowed"
            )

    def _find_needs(self, config: RunConfig) -> tuple[Need, Need]:
        """The needs of the trainer and of one replica. It reads the model's folder, on a disk that may hang."""
        check_hosts(config, self._settings.launcher)
        pools, rollout = self._manager.pools, config.rollout
        trainer, replica = find_needs(config, pools)
        replicas = rollout.replicas, rollout.max_replicas
        check_fits(Ask("", "", 0, 0.0, trainer, replica, *replicas), pools)
        # After that: the pools bound the ranks of which each is computed.
        check_memory(config, trainer, replica, pools)
        return trainer, replica

    def _make(
        self,
        client: ClientIdentity,
        request_id: str,
        config: RunConfig,
        priority: int,
        run_id: str,
        needs: tuple[Need, Need],
    ) -> Managed:
        now, rollout = self._clock(), config.rollout
        folder = self._settings.folder / run_id
        trainer, replica = needs
        return Managed(
            run_id=run_id,
            name=config.run.name,
            owner=client.owner,
            request_id=request_id,
            priority=priority,
            created_at=now,
            folder=str(folder),
            store_url=run_store_url(self._settings.store_url, run_id, folder),
            config=_tree(config),
            num_steps=config.run.num_steps,
            trainer=trainer,
            replica=replica,
            min_replicas=rollout.replicas,
            max_replicas=rollout.max_replicas,
            queued_at=now,
            asked_by=client.name,
        )

    def _new_id(self, name: str, now: float) -> str:
        """NAME-DATE-TIME; the next second's where that is taken."""
        known = {run.run_id for run in self._records.all()}
        for second in itertools.count(int(now)):
            run_id = f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(second))}"
            if run_id not in known and not (self._settings.folder / run_id).exists():
                return run_id
        raise AssertionError("unreachable")

    async def _steer(
        self, client: ClientIdentity, run_id: str, make: Callable[[Managed], Managed]
    ) -> Run:
        self._of(client, run_id)
        return await self._announce(await self._records.change(run_id, make))

    async def _announce(self, run: Managed, text: str = "") -> Run:
        """To those who watch it: its state or, where that is the same, `text`."""
        links = self._manager.links
        try:
            await (links.say(run, EventKind.PROCESS, text) if text else links.say_once(run))
        except (StoreError, StoreFullError) as error:
            # The change is recorded, and stands: only watchers of the run do not see it.
            logger.warning(
                "run %s: %s, which its store cannot take: %s", run.run_id, run.state, error
            )
        return run.view

    def _of(self, client: ClientIdentity, run_id: str) -> Managed:
        run = self._records.get(run_id)
        client.check_owner(run.owner, f"run {run_id}")
        return run

    def _shown(self, run: Managed) -> Run:
        """A run whose store is full or away cannot say itself that it is held."""
        trouble = self._manager.troubles.get(run.run_id, "") if run.state.has_processes else ""
        return replace(run.view, held=run.held or trouble)

    def _has_ended(self, run_id: str) -> bool:
        try:
            return self._records.get(run_id).state.has_ended
        except NotFoundError:
            return True

    def _complete(self, run: Managed, event: RunEvent | int) -> RunEvent:
        """With what only the manager knows of the run."""
        if isinstance(event, int):
            text = f"events up to {event} are not kept any more"
            return RunEvent(event, EventKind.MISSED, run.view, {}, text, self._clock())
        known = {
            name: getattr(run, name)
            for name in ("name", "owner", "priority", "created_at", "folder", "num_steps")
        }
        words = {
            name: run.without_folder(getattr(event.run, name))
            for name in ("error", "remedy", "held")
        }
        is_path = event.kind is EventKind.CHECKPOINT
        text = event.text if is_path else run.without_folder(event.text)
        return replace(event, run=replace(event.run, **known, **words), text=text)


def _digest(config: str, overrides: Sequence[str], priority: int) -> str:
    """SHA-256 of what CreateRun was sent."""
    sent = json.dumps([config, list(overrides), priority])
    return hashlib.sha256(sent.encode(errors="surrogatepass")).hexdigest()


def _tree(config: RunConfig) -> dict[str, Any]:
    return json.loads(config.model_dump_json())


def _place(run: Managed) -> Place | None:
    return run_place(parse_config(run.config, source=f"run {run.run_id}"), run.run_id)


def _read_token(text: str) -> tuple[float, str] | None:
    if not text:
        return None
    try:
        created_at, run_id = json.loads(text)
        return float(created_at), str(run_id)
    except (ValueError, TypeError):
        raise InputError("page_token: not one of ours; give that of the answer before") from None


def _secrets(folder: Path) -> tuple[str, ...]:
    """That stand in files of the run, and shall stand in no answer."""
    path = folder / TOKEN_NAME
    return (path.read_text(encoding="ascii").strip(),) if path.is_file() else ()


def _check_sequence(field: str, number: int) -> None:
    """Stores count in int64."""
    if not 0 <= number < 2**63:
        raise InputError(f"{field}: {number} is not between 0 and {2**63 - 1}")
