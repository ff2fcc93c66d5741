"""The compose files, against what the services accept. tests/compose runs the demo for real."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands.cli.options import parse
from services.manager.clients_file import digest, read_clients
from services.manager.scheduling.needs import check_fits, find_needs
from services.manager.scheduling.pools import DeviceRequest
from services.manager.scheduling.scheduler import Scheduler
from services.manager.settings import ManagerSettings, load_settings
from trimaran.config import load_config
from trimaran.trust.allowed import Allowed

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/compose"
DEVICES = ("cpu", "cuda", "npu")
FOREIGN = {"redis", "prometheus"}
OF_SERVICES = {"secrets/token", "secrets/redis-password", "secrets/store"}
OF_SUBMITTERS = {"clients/clients.yaml", "clients/demo.token"}
"""The first has no secret in it: digests of tokens."""
SEEN = {
    "redis": {"redis-config/redis.conf", "redis"},
    "manager": OF_SERVICES | OF_SUBMITTERS | {"runs", "models"},
    "submit": OF_SUBMITTERS | {"models"},
    "reward": OF_SERVICES | {"plugin/token", "models"},
    "plugin": {"plugin/token"},
    "environment": OF_SERVICES | {"models"},
    "weight-sync": OF_SERVICES | {"models"},
    "controller": OF_SERVICES | {"runs", "models"},
    "trainer": OF_SERVICES | {"runs", "models"},
    "rollout": OF_SERVICES | {"models"},
    "prometheus": {"scrape/token", "prometheus"},
}
"""Service -> files of `prepare`, and volumes in which it makes none."""
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}")


def load(device: str) -> dict[str, Any]:
    """With defaults for its variables, and with what its services take from cpu.yaml."""
    file = FOLDER / f"{device}.yaml"
    text = VARIABLE.sub(lambda found: found[2] or "1", file.read_text()).replace("$$", "$")
    tree = yaml.safe_load(text)
    for name, service in tree["services"].items():
        if extends := service.pop("extends", None):
            assert extends["file"] == "cpu.yaml"
            base = load("cpu")["services"][extends["service"]]
            merged = {**base, **service}
            for key in ("volumes", "devices"):
                merged[key] = [*base.get(key, []), *service.get(key, [])]
            merged["build"] = merge_builds(base.get("build"), service.get("build"))
            tree["services"][name] = merged
    return tree


def merge_builds(base: Any, own: Any) -> Any:
    if not (base and own):
        return base or own
    return {**base, **own, "args": {**base.get("args", {}), **own.get("args", {})}}


def volumes_of(service: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Source, target, and whether it can only be read."""
    for volume in service.get("volumes", []):
        if isinstance(volume, dict):
            yield volume["source"], volume["target"], volume.get("read_only", False)
        else:
            source, target, *mode = volume.split(":")
            yield source, target, mode == ["ro"]


def words(service: dict[str, Any]) -> list[str]:
    """Of `trimaran`, as the container starts it."""
    entrypoint = service.get("entrypoint", ["tini", "--", "trimaran"])
    return (
        [*entrypoint[entrypoint.index("trimaran") + 1 :], *service.get("command", [])]
        if ("trimaran" in entrypoint)
        else list(service["command"])
    )


@pytest.mark.parametrize("device", DEVICES)
def test_the_services_take_their_command_lines(device: str) -> None:
    for name, service in load(device)["services"].items():
        if name in FOREIGN | {"prepare"}:
            continue
        options = parse(words(service))
        if options.command == "serve":
            assert name.startswith(options.kind)
            assert service.get("restart") == "unless-stopped"  # it serves one run after the other


@pytest.mark.parametrize("device", DEVICES)
def test_every_container_is_as_narrow_as_it_can_be(device: str) -> None:
    for name, service in load(device)["services"].items():
        assert service["read_only"] is True, name
        assert service["user"] == "10001:10001", name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        published = service.get("ports", [])
        assert all(port.startswith("127.0.0.1:") for port in published), name


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_mounted_is_declared_or_there(device: str) -> None:
    tree = load(device)
    for service in tree["services"].values():
        for source, _, _ in volumes_of(service):
            if source.startswith("."):
                assert (FOLDER / source).exists(), source
            elif not source.startswith("/"):
                assert source in tree["volumes"], source
        for network in service.get("networks", []):
            assert network in tree["networks"], network
        for other in service.get("depends_on", {}):
            assert other in tree["services"], other


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_built_are_targets_and_arguments_of_the_containerfile(device: str) -> None:
    text = (ROOT / "deploy/docker/Containerfile").read_text()
    for name, service in load(device)["services"].items():
        if not (build := service.get("build")):
            assert name in FOREIGN
            continue
        assert (FOLDER / build["context"] / build["dockerfile"]).is_file()
        assert re.search(rf"^FROM .* AS {build['target']}$", text, re.MULTILINE)
        known = set(
            re.findall(r"[A-Z_]{2,}", " ".join(re.findall(r"^ARG (.*)$", text, re.MULTILINE)))
        )
        assert set(build["args"]) <= known
        computes = build["target"] in ("rollout", "trainer")
        assert service["image"].endswith(f":{device if computes else 'cpu'}")
        assert build["args"].get("DEVICE", "cpu") == (device if computes else "cpu")


@pytest.mark.parametrize("device", ["cuda", "npu"])
def test_each_process_has_a_device_of_its_own(device: str) -> None:
    services = load(device)["services"]
    given = []
    for name in ("trainer", "rollout-0", "rollout-1"):
        if device == "npu":
            given += [d for d in services[name]["devices"] if re.match(r"/dev/davinci\d", d)]
        else:
            [reservation] = services[name]["deploy"]["resources"]["reservations"]["devices"]
            given += reservation["device_ids"]
        assert services[name].get("scale", 1) == 1
    assert len(given) == len(set(given)) == 3


def test_a_missing_part_of_the_driver_is_not_made() -> None:
    """An empty folder in its place would be a riddle later."""
    for volume in load("npu")["services"]["rollout-1"]["volumes"]:
        if isinstance(volume, dict):
            assert volume["bind"] == {"create_host_path": False}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the secrets that `prepare` makes, each volume by the name of its mount."""
    folder = tmp_path_factory.mktemp("prepared")
    for source, target, _ in volumes_of(load("cpu")["services"]["prepare"]):
        if not source.startswith("."):
            (folder / target[1:]).mkdir()
    (folder / "tmp").mkdir()
    script = re.sub(
        r"(?<![\w/])/(secrets|plugin|redis|clients|scrape|tmp)/",
        rf"{folder}/\1/",
        (FOLDER / "prepare.sh").read_text(),
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Killed between a token and its line for the manager: the next one makes both.
    killer = tmp_path_factory.mktemp("killer")
    (killer / "grep").write_text("#!/bin/sh\nkill -KILL $PPID\n")
    (killer / "grep").chmod(0o755)
    killed = subprocess.run(["sh", "-c", script], env=os.environ | {"PATH": f"{killer}:{path}"})
    assert killed.returncode == -signal.SIGKILL
    for _ in range(2):  # again, after one was lost
        (folder / "scrape/token").unlink(missing_ok=True)
        subprocess.run(["sh", "-c", script], env=os.environ | {"PATH": path}, check=True)
    return folder


@pytest.mark.parametrize("device", DEVICES)
def test_who_may_see_which_secret(device: str, made: Path) -> None:
    services = load(device)["services"]
    mounts = {source: target[1:] for source, target, _ in volumes_of(services["prepare"])}
    seen: dict[str, set[str]] = {}
    for name, service in services.items():
        own = seen.setdefault(name, set())
        for source, target, is_read_only in volumes_of(service):
            if source.startswith((".", "/")):
                continue
            files = [path.name for path in (made / mounts[source]).iterdir()]
            own |= {f"{source}/{file}" for file in files} or {source}
            assert is_read_only or name == "prepare" or not files, (name, target)
    assert seen.pop("prepare") == set[str]().union(*SEEN.values())
    assert seen == {name: SEEN[re.sub(r"-\d$", "", name)] for name in seen}


def test_each_secret_is_another_and_for_its_user_alone(made: Path) -> None:
    files = [path for path in made.rglob("*") if path.is_file() and path.parent.name != "tmp"]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    tokens = [path.read_text().strip() for path in files if path.suffix != ".yaml"]
    assert len(tokens) == len(set(tokens)) == 7
    known = {client.identity.name: client for client in read_clients(made / "clients/clients.yaml")}
    for name, file in (("demo", "clients/demo.token"), ("prometheus", "scrape/token")):
        assert known[name].sha256 == digest((made / file).read_text().strip())
    # The manager's own numbers are for operators.
    assert known["prometheus"].identity.role == "operator"


def settings_of(device: str) -> ManagerSettings:
    options = parse(words(load(device)["services"]["manager"]))
    return load_settings(FOLDER / "manager.yaml", overrides=options.overrides)


@pytest.mark.parametrize("device", DEVICES)
def test_the_manager_takes_its_configuration(device: str) -> None:
    settings = settings_of(device)
    settings.check_submissions()
    settings.check_services()
    settings.check_launcher()
    assert settings.network == "trusted"
    assert settings.clients == Path("/clients/clients.yaml")


@pytest.mark.parametrize("device", DEVICES)
def test_the_manager_counts_the_containers_and_a_second_run_waits(device: str) -> None:
    services, settings = load(device)["services"], settings_of(device)
    pools = {pool.name: pool for pool in settings.find_pools()}
    assert {pool.kind for pool in pools.values()} == {device}
    assert len(pools["trainer"].devices) == services["trainer"].get("scale", 1)
    replicas = [service for name, service in services.items() if name.startswith("rollout")]
    assert len(pools["rollout"].devices) >= sum(service["scale"] for service in replicas)
    submit = parse(words(services["submit"]))
    config = load_config(ROOT / submit.config.removeprefix("/"), submit.overrides)
    needs, rollout = find_needs(config, list(pools.values())), config.rollout
    asks = [
        DeviceRequest(name, "demo", 0, at, *needs, rollout.replicas, rollout.max_replicas)
        for at, name in enumerate(("first", "second"))
    ]
    check_fits(asks[0], list(pools.values()))
    plan = Scheduler(list(pools.values()), settings.policy).plan([], asks, now=10.0)
    assert plan.starts.keys() == {"first"}
    assert plan.waits["second"].startswith("another run to end")


@pytest.mark.parametrize("device", DEVICES)
def test_the_run_that_is_submitted_is_one_that_the_manager_allows(device: str) -> None:
    tree = load(device)
    submit = parse(words(tree["services"]["submit"]))
    config = load_config(ROOT / submit.config.removeprefix("/"), submit.overrides)
    assert str(config.model.path).endswith("models/SmolLM2-135M-Instruct")
    [plugin] = [rule.plugin for rule in config.reward.rules.values() if rule.plugin]
    allowed = Allowed.from_entries(
        tree["services"]["reward"]["environment"]["TRIMARAN_ALLOW"].split()
    )
    allowed.check_url(plugin.url, "url")
    settings = load_settings(FOLDER / "manager.yaml")
    assert settings.allow and plugin.url in settings.allow.plugin_hosts
    token = settings.allow.plugin_credentials[plugin.url].token_variable
    assert plugin.token_variable == token


def test_redis_keeps_what_it_has_acknowledged() -> None:
    text = (FOLDER / "prepare.sh").read_text()
    assert {"appendonly yes", "appendfsync always", "maxmemory-policy noeviction"} <= set(
        text.splitlines()
    )


@pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is missing: apt install prometheus"
)
def test_prometheus_takes_its_configuration() -> None:
    subprocess.run(
        ["promtool", "check", "config", "--syntax-only", FOLDER / "prometheus.yaml"], check=True
    )


@pytest.mark.skipif(
    not shutil.which("docker-compose"), reason="docker-compose (v2) is not on the path"
)
@pytest.mark.parametrize("device", DEVICES)
def test_compose_takes_the_files(device: str) -> None:
    command = ["docker-compose", "--file", FOLDER / f"{device}.yaml", "config", "--quiet"]
    subprocess.run(command, env=os.environ | {"NPU_GROUP": "1000"}, check=True, timeout=60)
