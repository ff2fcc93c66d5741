"""Puts the manager together: its store and lease, the loop, RunService, HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace

from services.manager import numbers
from services.manager.admission.admission import admit
from services.manager.clients_file import Clients
from services.manager.http.app import LOOPBACK, make_app
from services.manager.manager import LEASE_SECONDS, Manager
from services.manager.reconcile import TIMES, Times
from services.manager.records import LEASE, Records
from services.manager.run_data.folders import Deployment, own_folder
from services.manager.run_data.run_stores import RunStores
from services.manager.runs import Runs
from services.manager.scheduling.ray_pools import RayPools
from services.manager.server import MAX_REQUEST_BYTES, run_service
from services.manager.settings import ManagerSettings
from trimaran.config import RunConfig
from trimaran.errors import InputError, UnavailableError
from trimaran.host import watchdog
from trimaran.host.system_errors import refused
from trimaran.run.launchers import Launcher, LocalLauncher
from trimaran.run.network import listening_at
from trimaran.run.ray.cluster import Cluster, ray_address
from trimaran.store import OPEN_SECONDS, Lease, Store, open_store, store_name, timed
from trimaran.telemetry.exposition import StoreSeconds
from trimaran.trust.access import NO_TRUST, TOKEN, TlsFiles, Trust, is_loopback, read_secret
from trimaran.trust.allowed import ALLOW_VARIABLE
from trimaran.trust.tls import http_context, read_pem
from trimaran.wire import rpc
from trimaran.wire.http_server import serving_http

WAIT_SECONDS = LEASE_SECONDS + 2.0
"""For the lease of a manager that was killed to end."""
ASK_SECONDS = 2.0
NOTICE_SECONDS = 0.5
"""Without an answer of the store, after which it is said that it is waited for."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A manager at work."""

    address: str
    """The address of RunService, with its port."""
    http_address: str
    manager: Manager
    runs: Runs


@asynccontextmanager
async def serving(
    settings: ManagerSettings,
    launcher: Launcher | None = None,
    times: Times = TIMES,
    wait_seconds: float = WAIT_SECONDS,
    say: Callable[[str], None] = lambda line: None,
) -> AsyncGenerator[Serving]:
    """RunService until the block ends; the runs go on. `Serving.manager.run()` is to be awaited.

    Raises InputError where another manager has the store, and where others than this machine's users
    could submit runs and it is not configured what these may name and cost.

    Example:
        async with serving(ManagerSettings(folder=Path("/runs"))) as served:
            await served.manager.run()
    """
    async with AsyncExitStack() as stack:
        _check(settings)
        store_seconds = StoreSeconds()
        store = timed(await _open(settings.store_url, say), store_seconds)
        stack.push_async_callback(store.close)
        lease = await take_lease(store, wait_seconds, say, settings)
        stack.push_async_callback(_give_back, store, lease)
        manager = await _make_manager(stack, settings, store, lease, launcher, times)
        runs = Runs(manager, settings, _admission(settings))
        trust = Trust(tls=own_tls(settings), is_network_trusted=settings.network == "trusted")
        identify = Clients(settings.clients).identify if settings.clients else None
        server = await _make_server(settings, runs, trust, identify)
        if not (identify and (trust.tls or trust.is_network_trusted)):
            trust.check_address(settings.http_address)
        numbers.show(server.metrics, manager)
        server.metrics.show_store(store_seconds)
        app = make_app(
            runs,
            identify or trust.identify,
            server.metrics,
            is_ready=lambda: manager.is_ready,
            hosts=LOOPBACK if is_loopback(settings.http_address) else frozenset(),
        )
        await server.start()
        stack.push_async_callback(server.stop)
        tls = http_context(trust.tls) if trust.tls else None
        listener, http = listening_at(settings.http_address, "--http")
        await stack.enter_async_context(serving_http(app, listener, tls))
        yield Serving(server.address, http, manager, runs)


def _check(settings: ManagerSettings) -> None:
    settings.check_submissions()
    settings.check_services()
    settings.check_launcher()
    try:
        settings.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"--folder: {settings.folder} cannot be made"
        raise refused(what, error, "name another one") from None


async def _make_manager(
    stack: AsyncExitStack,
    settings: ManagerSettings,
    store: Store,
    lease: Lease,
    launcher: Launcher | None,
    times: Times,
) -> Manager:
    """With every run that the store has. What it opens is closed by `stack`."""
    ray = RayPools(Cluster(ray_address())) if settings.launcher == "ray" else None
    pools = await ray.open() if ray else settings.find_pools()
    stores = RunStores()
    stack.push_async_callback(stores.close)
    records = await Records.load(store, lease)
    for run in records.all():
        if (own := own_folder(run, settings.folder, settings.store_url)) != run:
            await records.change(run.run_id, lambda now, own=own: own)
    manager = Manager(
        records,
        lease,
        stores,
        launcher or LocalLauncher(launcher_environment(settings)),
        pools,
        settings.policy,
        times,
        _secrets(settings),
        deployment_of(settings),
    )
    if ray:
        following = asyncio.create_task(ray.follow(manager.use_pools))
        stack.callback(following.cancel)
    return manager


async def _make_server(
    settings: ManagerSettings, runs: Runs, trust: Trust, identify: rpc.Identify | None
) -> rpc.Server:
    """Raises InputError where another manager listens at the address."""
    try:
        return rpc.Server(
            settings.address,
            [run_service(runs)],
            trust=trust,
            identify=identify,
            max_request_bytes=MAX_REQUEST_BYTES,
        )
    except InputError as error:
        await _check_no_manager(settings.address)
        raise InputError(f"--address: {error}") from None


async def _open(url: str, say: Callable[[str], None]) -> Store:
    """Says what it waits for where the store does not answer at once."""

    def tell() -> None:
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + OPEN_SECONDS))
        say(f"waits for the store {store_name(url)}, until {until}")

    notice = asyncio.get_running_loop().call_later(NOTICE_SECONDS, tell)
    try:
        return await open_store(url)
    except UnavailableError as error:
        raise UnavailableError(f"{error}; or name another store: --store") from None
    finally:
        notice.cancel()


async def take_lease(
    store: Store,
    wait_seconds: float,
    say: Callable[[str], None],
    settings: ManagerSettings,
) -> Lease:
    """Raises InputError where another manager keeps it."""
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    holder = (
        f"process {os.getpid()} on {socket.gethostname()} at {settings.address},"
        f" since {started}, {uuid.uuid4().hex[:8]}"
    )
    deadline = time.monotonic() + wait_seconds
    said = False
    while (lease := await store.acquire(LEASE, holder, LEASE_SECONDS)) is None:
        other = await store.holder(LEASE)
        name = other.holder.rpartition(", ")[0] if other else "another manager"
        where = store_name(settings.store_url)
        if time.monotonic() >= deadline:
            raise InputError(
                f"a manager has the store {where}: {name}. Use that one (trimaran list --manager"
                " ADDRESS), or end it (its runs go on, and a new manager finds them), or start this"
                " one with another --folder or --store"
            )
        if not said:
            until = time.strftime("%H:%M:%S", time.localtime(time.time() + wait_seconds))
            say(f"a manager has the store {where}: {name}; waits until {until} for its end")
            said = True
        await asyncio.sleep(0.2)
    return lease


async def _check_no_manager(address: str) -> None:
    """Raises InputError where one listens there already."""
    name = "trimaran.v1.RunService"
    if await rpc.is_serving(address, ASK_SECONDS, trust=NO_TRUST, name=name):
        raise InputError(
            f"--address: {address}: another manager listens there; use it (trimaran list --manager"
            f" {address}), end it, or give this one another --address and --http"
        )


async def _give_back(store: Store, lease: Lease) -> None:
    with suppress(UnavailableError):
        await store.release(lease)


def _admission(settings: ManagerSettings) -> Callable[..., RunConfig]:
    allow, limits, network = settings.allowed, settings.limits, settings.services.network
    return lambda text, overrides: admit(text, overrides, allow, limits, network)[0]


def launcher_environment(settings: ManagerSettings) -> dict[str, str]:
    """The environment of every run's launcher: the operator alone says what rewards may call, and tokens of plugins
    are only for runs that name them."""
    others = (*_secrets(settings), *watchdog.VARIABLES)  # what systemd says to us is ours alone
    environment = {name: value for name, value in os.environ.items() if name not in others}
    if (allow := settings.allowed) is not None:
        environment[ALLOW_VARIABLE] = "\n".join(allow.entries)
    return environment


def _secrets(settings: ManagerSettings) -> dict[str, str]:
    """Tokens that the operator has for hosts of plugins, by their variables."""
    hosts = settings.allow.plugin_credentials.values() if settings.allow else ()
    names = {host.token_variable for host in hosts}
    return {name: value for name, value in os.environ.items() if name in names}


def deployment_of(settings: ManagerSettings) -> Deployment:
    """Raises InputError for files that cannot be used."""
    path = settings.service_token
    token = read_secret(path, "service_token") if path else ""
    if token and not TOKEN.fullmatch(token):
        raise InputError(f"service_token: {path} must hold 16 to 256 characters without spaces")
    return Deployment(settings.launcher, replace(service_trust(settings), token=token))


def service_trust(settings: ManagerSettings) -> Trust:
    """How the runs' services trust each other, without a token. Raises InputError for unusable files."""
    tls = settings.services.tls
    files = None
    if tls is not None:
        files = TlsFiles(tls.certificate, tls.key, tls.authorities, server_name=tls.server_name)
        read_pem(files)
    return Trust(tls=files, is_network_trusted=settings.network == "trusted")


def own_tls(settings: ManagerSettings) -> TlsFiles | None:
    tls = settings.tls
    return TlsFiles(tls.certificate, tls.key, tls.authorities) if tls else None
