"""The operator's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from services.manager.settings import load_settings, pools_in_sight
from tests.certificates import Authority
from tests.manager.fakes import managing
from tests.manager.test_runs import create
from trimaran.errors import InputError
from trimaran.host.machine import Machine
from trimaran.run.context import RunContext


def write(folder: Path, text: str) -> Path:
    path = folder / "manager.yaml"
    path.write_text(text)
    return path


def test_without_a_file_it_is_this_machine_on_loopback() -> None:
    settings = load_settings(None)
    assert settings.folder == Path.cwd() / "runs"
    assert settings.address == "127.0.0.1:7900"
    assert settings.store_url == f"sqlite:{settings.folder}/manager.sqlite"


def test_pools_in_sight_are_the_accelerators_and_slots_of_the_cpu() -> None:
    gpus = Machine({}, frozenset(), num_npus=0, num_gpus=3)
    cuda, cpu = pools_in_sight(gpus)
    assert (cuda.kind, cuda.devices) == ("cuda", ("0", "1", "2"))
    assert cpu.kind == "cpu" and len(cpu.devices) >= 8
    [only] = pools_in_sight(Machine({}, frozenset(), 0, 0))
    assert only.kind == "cpu"


def test_the_command_line_wins(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "folder: all\npools: {x: {device: cuda, devices: [4, 5], labels: {memory: '80'}}}\n",
    )
    assert load_settings(path).folder == tmp_path / "all"
    assert load_settings(path, {"folder": Path("/other")}).folder == Path("/other")
    changed = load_settings(path, {}, ["pools.x.devices=[6]", "limits.runs=3", "clients=d.yaml"])
    assert (changed.limits.runs, changed.clients) == (3, tmp_path / "d.yaml")
    [pool] = changed.find_pools()
    assert (pool.kind, pool.devices, dict(pool.labels)) == ("cuda", ("6",), {"memory": "80"})
    with pytest.raises(InputError, match=r"did you mean limits.runs\?"):
        load_settings(path, {}, ["limits.run=3"])


def test_every_relative_path_starts_at_the_file(tmp_path: Path) -> None:
    tls = "certificate: c, key: k, authorities: a"
    path = write(
        tmp_path,
        "store: 'sqlite:m.sqlite'\nservice_token: t\n"
        f"tls: {{{tls}}}\nservices: {{tls: {{{tls}}}}}\n"
        "allow:\n  models: [m]\n  data: [d]\n  sources: [s, 's3://s']\n"
        "  payloads: [p, 's3://p']\n  functions: ['f.py:*', 'a.b:c']\n"
        "  plugin_credentials: {h: {ca_file: h.pem}}\n",
    )
    settings = load_settings(path)
    allow, services = settings.allow, settings.services.tls
    assert settings.store_url == f"sqlite:{tmp_path}/m.sqlite"
    assert settings.service_token == tmp_path / "t"
    assert allow and (allow.models, allow.data) == ((tmp_path / "m",), (tmp_path / "d",))
    assert allow.sources == (f"{tmp_path}/s", "s3://s")
    assert allow.payloads == (f"{tmp_path}/p", "s3://p")
    assert allow.functions == (f"{tmp_path}/f.py:*", "a.b:c")
    assert allow.plugin_credentials["h"].ca_file == tmp_path / "h.pem"
    for given in (settings.tls, services):
        assert given and given.authorities
        found = given.certificate, given.key, given.authorities
        assert found == (tmp_path / "c", tmp_path / "k", tmp_path / "a")


def test_pools_hold_what_the_vendors_variables_take(tmp_path: Path) -> None:
    text = (
        "pools: {x: {device: cuda, devices: [GPU-ab, MIG-cd]}, y: {device: npu, devices: [3, 1]}}"
    )
    settings = load_settings(write(tmp_path, text))
    names = {pool.name: pool.devices for pool in settings.find_pools()}
    assert names == {"x": ("GPU-ab", "MIG-cd"), "y": ("1", "3")}  # a runtime wants NPUs to ascend


@pytest.mark.parametrize(
    ("devices", "variables", "words"),
    [
        ("[0, 7]", {}, "pools.x.devices: 7 not in sight; in sight: 0, 1, 2, 3"),
        ("[0]", {"CUDA_VISIBLE_DEVICES": "1"}, "0 not in sight; in sight: 1"),
        ("[GPU-ab]", {"CUDA_VISIBLE_DEVICES": "GPU-cd"}, "GPU-ab not in sight; in sight: GPU-cd"),
    ],
)
def test_a_pool_of_devices_that_are_not_there_is_refused(
    tmp_path: Path, devices: str, variables: dict[str, str], words: str
) -> None:
    machine = Machine(variables, frozenset(), num_npus=0, num_gpus=4)
    settings = load_settings(write(tmp_path, f"pools: {{x: {{device: cuda, devices: {devices}}}}}"))
    with pytest.raises(InputError, match=words):
        settings.check_in_sight(machine)
    for good in ("[3]", "[GPU-ab, MIG-cd]"):
        path = write(tmp_path, f"pools: {{x: {{device: cuda, devices: {good}}}}}")
        load_settings(path).check_in_sight(Machine({}, frozenset(), 0, 4))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pool: {}", r"pool: unknown key; did you mean pools\? .known here: folder, store, "),
        (
            "pools: {x: {device: cuda, device_numbers: [1]}}",
            r"pools.x.device_numbers: unknown key; did you mean pools.x.devices\?",
        ),
        ("pools: {devices: {device: cuda, slot: 1}}", r"did you mean pools.devices.slots\?"),
        ("tls: {cert: a}", r"tls.certificate: missing; it must be given"),
        ("allow: {plugin_credentials: {h: {token: T}}}", r"did you mean .*\.h\.token_variable\?"),
        ("limits: 3", "limits: must be a section of runs, kept, running"),
        ("pools: {x: {device: cuda}}", "lists devices"),
        ("pools: {x: {device: cpu, devices: [1]}}", "counts slots"),
        ("pools: {x: {device: cuda, devices: [1, 1]}}", "each once"),
        (
            "pools: {x: {device: cuda, devices: [1]}, y: {device: cuda, devices: [1]}}",
            "also stands in pools.x",
        ),
        ("pools: {x: {device: npu, devices: [GPU-ab]}}", "logical number"),
        ("pools: {x: {device: cuda, devices: [gpu0]}}", "x.devices.*UUIDs of GPUs"),
        (
            "pools: {x: {device: cuda, devices: [1]}, y: {device: cuda, devices: [GPU-ab]}}",
            "numbers here and UUIDs there",
        ),
        ("- a", "sections"),
        ("allow: {anything: true, models: [m]}", "allow: anything: true leaves nothing to models"),
        ("a: [", "not YAML"),
        ("limits: {runs: -1}", "limits.runs"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_settings(write(tmp_path, text))


BEYOND = "address: 0.0.0.0:7900\nclients: c.yaml\n"
LIMITS = "limits: {runs: 20, kept: 0, replicas: 64, steps: 1000, tokens: 0, disk_gib: 0, host_memory_gib: 9}\n"


def test_where_others_submit_the_operator_must_have_a_word_on_what_runs_may_cost(
    tmp_path: Path,
) -> None:
    load_settings(None).check_submissions()  # loopback
    text = BEYOND + "limits: {runs: 20, running: 4, steps: 1000}"
    with pytest.raises(InputError) as caught:
        load_settings(write(tmp_path, text)).check_submissions()
    said = str(caught.value)
    assert said.startswith("limits: kept, replicas, tokens, disk_gib, host_memory_gib not given")
    assert (
        "at 0.0.0.0:7900;" in said
        and "limits: {kept: 0, replicas: 0, tokens: 0, disk_gib: 0, host_memory_gib: 0}" in said
    )
    with pytest.raises(InputError, match=r"at 10\.0\.0\.7:80;"):
        load_settings(write(tmp_path, "http_address: 10.0.0.7:80")).check_submissions()
    told = BEYOND + LIMITS
    with pytest.raises(InputError, match="^allow: not given.*allow: {models: .*anything: true"):
        load_settings(write(tmp_path, told)).check_submissions()
    load_settings(write(tmp_path, told + "allow: {data: [/data]}")).check_submissions()
    settings = load_settings(write(tmp_path, told + "allow: {anything: true}"))
    settings.check_submissions()
    assert settings.allowed is None
    assert settings.limits.describe() == (
        "runs 20, replicas 64, steps 1000, host_memory_gib 9; no limit of kept, running, devices, tokens,"
        " disk_gib"
    )


def test_runs_leave_this_machine_only_with_tls_or_the_operators_word(tmp_path: Path) -> None:
    network = "services: {network: {subnet: 10.0.0.0/8}}\n"
    with pytest.raises(
        InputError, match=r"services\.network\.subnet: 10\.0\.0\.0/8 is beyond loop"
    ):
        load_settings(write(tmp_path, network)).check_services()
    load_settings(write(tmp_path, network + "network: trusted\n")).check_services()
    load_settings(write(tmp_path, "services: {network: {ports: 30000-30999}}\n")).check_services()
    load_settings(None).check_services()


async def test_services_of_runs_are_told_the_operators_certificates(tmp_path: Path) -> None:
    Authority("services").write(tmp_path / "pem")
    tls = {"certificate": "pem/cert.pem", "key": "pem/key.pem", "authorities": "pem/ca.pem"}
    tree = {
        "services": {"network": {"subnet": "10.0.0.0/8"}, "tls": {**tls, "server_name": "run"}},
        "folder": "runs",
    }
    given = load_settings(write(tmp_path, yaml.safe_dump(tree)))
    given.check_services()
    async with managing(tmp_path / "runs", services=given.services) as served:
        run_id = await create(served, tmp_path)
        trust = RunContext.in_folder(tmp_path / "runs" / run_id).trust
        assert trust.token and trust.tls and not trust.is_network_trusted
        assert (trust.tls.authorities, trust.tls.server_name) == (tmp_path / "pem/ca.pem", "run")
    (tmp_path / "pem/key.pem").write_text("no key")
    with pytest.raises(InputError, match=r"cannot be used for TLS"):
        async with managing(tmp_path / "others", services=given.services):
            pass
