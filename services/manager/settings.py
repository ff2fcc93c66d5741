"""The operator's configuration: one YAML for `trimaran up --config manager.yaml`.

    settings = load_settings(Path("manager.yaml"))
    settings.pools["h100"].devices == (0, 1, 2, 3)

Without a file `trimaran up` serves this machine: what is in sight, on loopback, for everybody who reaches
it. Unknown keys are errors. Relative paths start at the folder of the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from services.manager.scheduling.pools import Pool
from services.manager.scheduling.scheduler import SchedulingPolicy
from trimaran.config import (
    Address,
    NetworkSection,
    NonNegative,
    PlaceUrl,
    Positive,
    Seconds,
    SinkName,
    is_device_list,
    override_value,
    set_override,
)
from trimaran.config.faults import describe_faults
from trimaran.config.section import Section
from trimaran.config.yaml_text import parse_yaml
from trimaran.errors import InputError
from trimaran.host.device import Kind, find_hidden, find_missing, find_visible
from trimaran.host.machine import Machine, read_machine
from trimaran.run.placement import describe_sight
from trimaran.store import is_shared, store_from
from trimaran.trust.access import is_loopback
from trimaran.trust.allowed import COMMAND, NETWORKED, absolute_entry

ADDRESS = "127.0.0.1:7900"
HTTP_ADDRESS = "127.0.0.1:7980"
KINDS: tuple[Kind, ...] = ("npu", "cuda")
COSTS = ("runs", "kept", "replicas", "steps", "tokens", "disk_gib", "host_memory_gib")
"""Limits about which an operator must have a word where others than this machine's users submit."""
LEAST_SLOTS = 8
"""CPU slots of a machine without a configuration: the example has three processes."""


def _path(path: Path, info: ValidationInfo) -> Path:
    return _folder(info) / path


def _place(place: Any, info: ValidationInfo) -> Any:
    """Before `PlaceUrl` takes it from the working directory."""
    is_folder = isinstance(place, str) and "://" not in place
    return str(_folder(info) / place) if is_folder else place


def _function(entry: str, info: ValidationInfo) -> str:
    return str(_folder(info) / entry) if ".py:" in entry else entry


def _command(entry: str, info: ValidationInfo) -> str:
    if not entry.startswith((COMMAND, NETWORKED)):
        raise ValueError(
            "give `command python agent.py`, or `network python agent.py` with a network"
        )
    return absolute_entry(entry, _folder(info))


def _store(url: str, info: ValidationInfo) -> str:
    return store_from(_folder(info), url)


def _folder(info: ValidationInfo) -> Path:
    """The file's folder, which `load_settings` gives as the context."""
    return info.context or Path()


File = Annotated[Path, AfterValidator(_path)]
"""A path as all those of this configuration: a relative one starts at the folder of the file."""
AllowedPlace = Annotated[PlaceUrl, BeforeValidator(_place)]
AllowedFunction = Annotated[str, AfterValidator(_function)]
AllowedCommand = Annotated[str, AfterValidator(_command)]
StoreUrl = Annotated[str, AfterValidator(_store)]


def _check_names(value: Any) -> Any:
    if value != () and not is_device_list(value):
        raise ValueError(
            "must be a list of numbers, or of UUIDs of GPUs, each once, such as [0, 1] or"
            f" [GPU-8932f937, MIG-dc4d] (given: {value!r})"
        )
    return value


class PoolSection(Section):
    """Devices of one kind. `pools: {h100: {device: cuda, devices: [0, 1], labels: {memory: "80"}}}`"""

    device: Literal["npu", "cuda", "cpu"]
    devices: Annotated[tuple[int | str, ...], BeforeValidator(_check_names)] = ()
    """Numbers or, of GPUs, UUIDs, as `trainer.devices` in a run has them."""
    slots: NonNegative = 0
    """How many trainer ranks and replicas a CPU computes at a time; for accelerators that are elsewhere
    (`launcher: external`) how many there are."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """What runs choose pools by. `memory` is also read as the GiB of one device: a run whose weights and
    optimizer alone need more is refused."""

    @model_validator(mode="after")
    def _has_devices(self) -> PoolSection:
        given, wanted = ("slots", "devices") if self.devices else ("devices", "slots")
        if self.device == "cpu" and not (self.slots and not self.devices):
            raise ValueError(f"a cpu pool counts slots; give slots, not {wanted}")
        if self.device != "cpu" and bool(self.devices) == bool(self.slots):
            raise ValueError(f"a pool of {self.device} lists devices; give devices, not {given}")
        if self.device == "npu" and not all(isinstance(name, int) for name in self.devices):
            raise ValueError(
                "devices: an NPU is known by its logical number (Chip Logic ID of npu-smi info -m)"
            )
        return self


class TlsSection(Section):
    """PEM files; each is read again when it changes. `tls: {certificate: tls.crt, key: tls.key}`"""

    certificate: File
    key: File
    authorities: File | None = None
    """Clients must show a certificate that one of these signed (mutual TLS)."""


class ServiceTlsSection(Section):
    """PEM files that lie under these paths on every host of a run, for its services among themselves.

    services: {tls: {certificate: service.crt, key: service.key, authorities: services-ca.crt}}
    """

    certificate: File
    key: File
    authorities: File
    """Each side shows the other a certificate that one of these signed."""
    server_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]*$")] = ""
    """That each service's certificate must carry. Without it the address that is called: the
    certificate of a host then names its addresses."""


class ServicesSection(Section):
    """How the services of all runs communicate. `services: {network: {subnet: 10.0.0.0/8}, tls: {...}}`"""

    network: NetworkSection | None = None
    """As a run's own `network:`, which must then agree or be left out."""
    tls: ServiceTlsSection | None = None
    """Beyond loopback services want it, or the word `network: trusted`. Tensors travel without it."""


class CredentialsSection(Section):
    """What calls of one plugin's host may show and trust."""

    token_variable: str | None = None
    ca_file: File | None = None


class AllowSection(Section):
    """What the specification of a run may name. `allow: {models: [/models], data: [/data]}`"""

    anything: bool = False
    """The operator's word that runs may name whatever the manager's own user may read and write: its
    keys, other clients' tokens and other runs as well. It stands alone."""
    models: tuple[File, ...] = ()
    """Folders below which `model.path` and `trainer.load` lie."""
    data: tuple[File, ...] = ()
    rules: tuple[str, ...] | None = None
    """Built-in rules; all, where it is not given."""
    sources: tuple[AllowedPlace, ...] = ()
    """Folders and buckets below which `model.source` may lie, such as s3://models."""
    payloads: tuple[AllowedPlace, ...] = ()
    """The same for `run.payloads` and `run.checkpoints`, such as s3://bucket/payloads."""
    functions: tuple[AllowedFunction, ...] = ()
    """file.py:name or package.module:name, as `trimaran train --allow` takes them."""
    sinks: tuple[SinkName, ...] = ()
    """wandb, or sinks of installed packages: what `metrics.sinks` may name. The run's controller uses the
    accounts there that the manager's environment opens."""
    plugin_hosts: tuple[str, ...] = ()
    """https://host:port, or a network such as 10.0.0.0/8."""
    commands: tuple[AllowedCommand, ...] = ()
    """Of agents and servers of tools: `command python agent.py`, as `trimaran train --allow` takes them."""
    plugin_credentials: Mapping[str, CredentialsSection] = Field(default_factory=dict)
    """By the host, as it stands in `plugin_hosts`."""

    @model_validator(mode="after")
    def _anything_stands_alone(self) -> AllowSection:
        others = self.model_fields_set - {"anything"}
        if self.anything and others:
            raise ValueError(
                f"anything: true leaves nothing to {', '.join(sorted(others))}; give one of the two"
            )
        return self

    @property
    def entries(self) -> tuple[str, ...]:
        """For TRIMARAN_ALLOW of the run's processes."""
        return (*self.functions, *self.plugin_hosts, *self.commands)


class LimitsSection(Section):
    """The most that one owner may have (the first three), and that each run may be or cost; 0 stands
    for no limit.

    limits: {runs: 20, replicas: 64, steps: 10000}
    """

    runs: NonNegative = 0
    """An owner's queued, running and paused runs."""
    kept: NonNegative = 0
    """An owner's runs that are not deleted, ended ones included."""
    running: NonNegative = 0
    """An owner's runs at a time; others wait in the queue."""
    devices: NonNegative = 0
    """Devices that one run needs to start."""
    replicas: NonNegative = 0
    """Replicas that one run may grow to."""
    steps: NonNegative = 0
    """Steps of one run."""
    tokens: NonNegative = 0
    """That one run may generate."""
    disk_gib: Annotated[float, Field(ge=0)] = 0
    """That one run may take by checkpoints and payloads."""
    host_memory_gib: Annotated[float, Field(ge=0)] = 0
    """One run's reward workers and environments, what replicas on the CPU keep, and the answers under way."""
    priority: NonNegative = 100
    """Priorities lie between minus that and that."""
    watchers: Positive = 100
    """What one client may follow at a time."""

    @property
    def unset(self) -> list[str]:
        """The limits on a run's costs that the operator has not set."""
        return [name for name in COSTS if name not in self.model_fields_set]

    def describe(self) -> str:
        """In a line. Example: LimitsSection(runs=20).describe()"""
        given = self.model_dump(exclude={"priority", "watchers"})
        limited = ", ".join(f"{name} {most:g}" for name, most in given.items() if most)
        others = ", ".join(name for name, most in given.items() if not most)
        return f"{limited}; no limit of {others}" if limited and others else limited or "none"


class FairShareSection(Section):
    """The order of the queue. `queue: {weights: {research: 3}}`"""

    weights: Mapping[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Owners that may have more devices than others; 1 for who is not named."""
    aging: Seconds = 6 * 3600.0
    """Waiting for so many seconds counts as one point of priority."""
    patience: Seconds = 1800.0
    """For so many seconds a run that does not fit lets smaller ones behind it pass."""


class ManagerSettings(Section):
    """All of it. Example: ManagerSettings(pools={"host": {"device": "cpu", "slots": 8}})"""

    folder: File = Path("runs")
    """Each run has a folder in it, and the manager its store."""
    store: StoreUrl = ""
    """As `open_store` takes it; empty: manager.sqlite in `folder`, and a file in each run's."""
    address: Address = ADDRESS
    http_address: Address = HTTP_ADDRESS
    pools: Mapping[str, PoolSection] = Field(default_factory=dict)
    """Empty: the accelerators in sight, and slots of the CPU."""
    clients: File | None = None
    """Tokens of clients with their owners and roles; without it every client that reaches the manager is an
    operator, so it listens on loopback only."""
    tls: TlsSection | None = None
    network: Literal["loopback", "trusted"] = "loopback"
    """`trusted`: the operator vouches for the network, in place of TLS."""
    services: ServicesSection = ServicesSection()
    """How the services of runs reach and trust each other."""
    allow: AllowSection | None = None
    """Without it runs may name what the manager's own user may read; that is for loopback only."""
    launcher: Literal["local", "external", "ray"] = "local"
    """What starts the processes of runs: the launcher on this machine, a Ray cluster to which this
    machine belongs and whose nodes are the pools, or a container engine, whose
    processes are `trimaran serve KIND --store-file FILE`."""
    sets: Positive = 1
    """How many controllers, reward services and weight syncs there are with `launcher: external`. Each
    serves one run at a time, so further runs wait. Ranks and replicas are counted by `pools`."""
    service_token: File | None = None
    """A file with a secret of 16 characters or more. External services show it to each other and to their
    launcher; they have the same file, because they are there before their run. Under the other launchers
    each run's token is made of it, so that a manager on another host that has the file goes on with runs
    that are under way."""
    limits: LimitsSection = LimitsSection()
    queue: FairShareSection = FairShareSection()

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:{self.folder / 'manager.sqlite'}"

    @property
    def allowed(self) -> AllowSection | None:
        """None: anything."""
        return None if self.allow is None or self.allow.anything else self.allow

    @property
    def policy(self) -> SchedulingPolicy:
        sets = self.sets if self.launcher == "external" else 0
        queue = self.queue
        return SchedulingPolicy(
            queue.weights, queue.aging, queue.patience, self.limits.running, sets
        )

    def find_pools(self) -> tuple[Pool, ...]:
        """Those that are declared, or what this machine has."""
        if not self.pools:
            return pools_in_sight(read_machine(os.environ))
        return tuple(
            Pool(name, section.device, _names(section), section.labels)
            for name, section in self.pools.items()
        )

    def check_submissions(self) -> None:
        """Raises InputError where others than this machine's users may submit runs, and it is not
        configured what these may name and cost."""
        beyond = [a for a in (self.address, self.http_address) if not is_loopback(a)]
        if not beyond:
            return
        faults: list[str] = []
        others = f"not given, and others may submit runs at {' and '.join(beyond)}"
        if unset := self.limits.unset:
            faults.append(
                f"limits: {', '.join(unset)} {others}; say what one owner's runs may cost, 0 for no"
                f" limit: limits: {{{', '.join(f'{name}: 0' for name in unset)}}}"
            )
        if self.allow is None:
            faults.append(
                f"allow: {others}; say below which folders the files lie that runs may name:"
                " allow: {models: [/models], data: [/data]}. With allow: {anything: true} a run may"
                " name every file of the manager's user, keys and tokens included"
            )
        if faults:
            raise InputError("\n".join(faults))

    def check_services(self) -> None:
        """Raises InputError where runs are to leave this machine, and neither TLS nor the operator's
        word says how their services trust the network."""
        network = self.services.network
        if network is None or network.subnet is None:
            return
        if self.services.tls is None and self.network != "trusted":
            raise InputError(
                f"services.network.subnet: {network.subnet} is beyond loopback; give services.tls"
                " (certificate, key, authorities), or say network: trusted"
            )

    def check_launcher(self) -> None:
        """Raises InputError where services elsewhere could not work for this manager, or slots and
        sets stand for what is on this machine."""
        if self.launcher != "external" and "sets" in self.model_fields_set:
            raise InputError("sets: is for launcher: external; leave it out")
        if self.launcher == "local":
            for name, section in self.pools.items():
                if section.device != "cpu" and section.slots:
                    raise InputError(
                        f"pools.{name}: slots of {section.device} are for launcher: external; give"
                        " devices"
                    )
            return
        faults: list[str] = []
        if not is_shared(self.store_url):
            faults.append("store: a file of this machine; give redis://…, which services can reach")
        if self.launcher == "ray":
            if self.pools:
                faults.append("pools: the nodes of the cluster are the pools; leave them out")
        elif self.service_token is None:
            faults.append("service_token: missing; name the file that the services have, too")
        if self.launcher == "external" and not self.pools:
            faults.append(
                "pools: missing; say what the services compute on, such as"
                " pools: {cluster: {device: npu, slots: 16}}"
            )
        if faults:
            raise InputError("\n".join(f"launcher: {self.launcher}: {fault}" for fault in faults))

    def check_in_sight(self, machine: Machine) -> None:
        """Raises InputError, with a line for each declared pool that this machine does not have."""
        if self.launcher != "local":
            return
        faults: list[str] = []
        for name, section in self.pools.items():
            if section.device == "cpu":
                continue
            faults += [
                f"pools.{name}: {what}" for what in find_missing(section.device, machine)
            ] or [
                f"pools.{name}.devices: {', '.join(hidden)} not in sight;"
                f" {describe_sight(section.device, machine)}"
                for hidden in [find_hidden(_names(section), section.device, machine)]
                if hidden
            ]
        if faults:
            raise InputError("\n".join(faults))

    @model_validator(mode="after")
    def _no_device_twice(self) -> ManagerSettings:
        owners: dict[tuple[str, int | str], str] = {}
        for name, section in self.pools.items():
            for device in section.devices:
                other = owners.setdefault((section.device, device), name)
                if other != name:
                    raise ValueError(
                        f"pools.{name}.devices: {device} also stands in pools.{other}; name it once"
                    )
        kinds = {type(device) for kind, device in owners if kind == "cuda"}
        if len(kinds) > 1:
            raise ValueError("pools: GPUs have numbers here and UUIDs there; use one of both")
        return self


def pools_in_sight(machine: Machine) -> tuple[Pool, ...]:
    """A pool for each kind of device, named as the kind."""
    seen: list[Kind] = [kind for kind in KINDS if not find_missing(kind, machine)]
    slots = max(os.cpu_count() or 1, LEAST_SLOTS)
    return (
        *(Pool(kind, kind, find_visible(kind, machine)) for kind in seen),
        Pool("cpu", "cpu", tuple(map(str, range(slots)))),
    )


def load_settings(
    path: Path | None, given: Mapping[str, Any] | None = None, overrides: Sequence[str] = ()
) -> ManagerSettings:
    """`overrides`: key.sub=value, in place of the file's. `given`: keys of the command line, which
    win; paths in it are absolute.

    Raises InputError with one line a fault.
    """
    tree: dict[str, Any] = {}
    if path is not None:
        try:
            tree = parse_yaml(path.read_text(encoding="utf-8")) or {}
        except OSError as error:
            raise InputError(f"--config: {path} cannot be read ({error.strerror})") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
        if not isinstance(tree, dict):
            raise InputError(f"{path}: must hold sections such as folder:, pools:, limits:")
    for override in overrides:
        set_override(tree, override, override_value(override))
    source = str(path) if path else "trimaran up"
    here = path.parent.resolve() if path else Path.cwd()
    try:
        return ManagerSettings.model_validate(tree | dict(given or {}), context=here)
    except ValidationError as error:
        faults = describe_faults(ManagerSettings, error)
        raise InputError("\n".join(f"{source}: {fault}" for fault in faults)) from None


def _names(section: PoolSection) -> tuple[str, ...]:
    """NPUs ascend: the runtime shows a process none of those that do not."""
    devices = sorted(section.devices) if section.device == "npu" else section.devices
    return tuple(map(str, devices or range(section.slots)))
