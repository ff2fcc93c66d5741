"""The Helm chart, against what Kubernetes and the services accept. tests/kubernetes installs it."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from commands.cli.main import main
from commands.cli.options import parse
from services.manager.clients_file import digest, read_clients
from services.manager.scheduling.pools import Need, place_replica
from services.manager.settings import ManagerSettings, load_settings
from tests.deploy.test_compose import load, words
from tests.kubernetes.tools import HOW, find
from tests.redis_server import PROGRAM, WHY_SKIPPED
from trimaran.config import RunConfig, parse_config
from trimaran.run.environment import part_of
from trimaran.run.network import LOOPBACK, split
from trimaran.trust.allowed import Allowed

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/kubernetes"
DEPLOY = ROOT / "docs/deploy.md"
DEVICES = ("cpu", "cuda", "npu")
RESOURCES = {"cuda": "nvidia.com/gpu", "npu": "huawei.com/Ascend910"}
# The first and the last of which the validator has schemas, and some between.
VERSIONS = ("1.25.0", "1.29.0", "1.33.0", "1.37.0")
OPERATORS = {"ServiceMonitor", "ScrapeConfig", "PrometheusRule", "RayCluster"}
"""Kinds that Kubernetes itself does not know."""
TLS = ("tls.services=services-tls", "tls.serverName=services", "tls.clients=manager-tls")
SETS = ("rollout.devices=16", "rollout.hosts=2")
"""Each replica on two hosts."""
PATIENT = Retry(ConstantBackoff(0.1), 300)
HELM = find("helm")

pytestmark = pytest.mark.skipif(HELM is None, reason=f"helm is missing: {HOW}")


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = list(map(str, (HELM, *arguments)))
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@functools.cache
def render(
    device: str, *values: str, version: str = "1.33.0", json_values: tuple[str, ...] = ()
) -> tuple[dict[str, Any], ...]:
    settings = [f"--set={value}" for value in values]
    settings += [f"--set-json={value}" for value in json_values]
    where = ["--namespace=lab", f"--kube-version={version}", "--values", CHART / f"{device}.yaml"]
    done = helm("template", "demo", CHART, *where, *settings)
    assert done.returncode == 0, done.stderr
    return tuple(filter(None, yaml.safe_load_all(done.stdout)))


def named(objects: tuple[dict[str, Any], ...], kind: str, name: str) -> dict[str, Any]:
    [found] = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, f"demo-{name}")]
    return found


def secret_data(secret: dict[str, Any]) -> dict[str, str]:
    return {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}


def pods(objects: tuple[dict[str, Any], ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in objects:
        if one["kind"] in ("Deployment", "StatefulSet"):
            yield one["metadata"]["name"].removeprefix("demo-"), one["spec"]["template"]["spec"]
        if one["kind"] == "RayCluster":
            yield "head", one["spec"]["headGroupSpec"]["template"]["spec"]
            for group in one["spec"]["workerGroupSpecs"]:
                yield group["groupName"], group["template"]["spec"]


def command_line(container: dict[str, Any]) -> list[str]:
    """Of `trimaran`; a rank's number as its pod sees it."""
    script = " ".join(container.get("command", []))
    rank = ["--index", "0"] if '--index "${HOSTNAME##*-}"' in script else []
    return [*container["args"], *rank]


def devices_of(container: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in container["resources"]["limits"].items() if k != "memory"}


def ours(objects: tuple[dict[str, Any], ...]) -> dict[str, list[str]]:
    return {
        name: command_line(pod["containers"][0]) for name, pod in pods(objects) if name != "redis"
    }


def manager_settings(objects: tuple[dict[str, Any], ...], folder: Path) -> ManagerSettings:
    path = folder / "manager.yaml"
    path.write_text(named(objects, "ConfigMap", "config")["data"]["manager.yaml"])
    return load_settings(path)


@pytest.mark.parametrize("device", DEVICES)
def test_lint_finds_nothing(device: str) -> None:
    done = helm("lint", "--strict", CHART, "--values", CHART / f"{device}.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("device", DEVICES)
def test_kubernetes_takes_every_object(device: str, version: str) -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is missing: pip install it"
    )
    for values in ((), SETS):
        for one in render(device, *TLS, *values, version=version):
            if one["kind"] not in OPERATORS:
                validator.validate(one, version.rpartition(".")[0], strict=True)


def test_disruption_budgets_are_of_the_version_that_the_cluster_has() -> None:
    for version, api in (("1.20.2", "policy/v1beta1"), ("1.21.0", "policy/v1")):
        budget = named(render("cpu", version=version), "PodDisruptionBudget", "rollout")
        assert budget["apiVersion"] == api


def test_every_stateful_pod_has_a_disruption_budget() -> None:
    objects = render("npu", *SETS)
    stateful = {o["metadata"]["name"] for o in objects if o["kind"] == "StatefulSet"}
    budgets = {
        o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "PodDisruptionBudget"
    }
    assert stateful == {"demo-rollout", "demo-trainer", "demo-redis"} == budgets.keys()
    # Where the store's node is emptied, the operator says when.
    assert budgets["demo-redis"]["maxUnavailable"] == 0
    without = render("npu", "redis.address=redis.lab:6379")
    assert not [o for o in without if o["metadata"]["name"] == "demo-redis"]


POD_OF = {
    "manager": "manager",
    "controller": "controller",
    "reward": "reward",
    "weightSync": "weight-sync",
    "rollout": "rollout",
    "trainer": "trainer",
    "redis": "redis",
    "demo": "plugin",
}
OWN = {
    "env": [{"name": "HCCL_CONNECT_TIMEOUT", "value": "600"}],
    "volumes": [{"name": "own", "emptyDir": {}}],
    "volumeMounts": [{"name": "own", "mountPath": "/own"}],
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "own", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "resources.limits": {"memory": "33Gi"},
}


@pytest.mark.parametrize("kuberay", [False, True], ids=["pods", "kuberay"])
def test_every_pod_takes_what_kubernetes_has_for_it(kuberay: bool) -> None:
    own = [f"{part}.{key}={json.dumps(value)}" for part in POD_OF for key, value in OWN.items()]
    ray = ("kuberay.enabled=true", "kuberay.image=ours:1") if kuberay else ()
    plain = dict(pods(render("cpu", *ray)))
    found = dict(pods(render("cpu", *ray, json_values=tuple(own))))
    assert len(found) == (5 if kuberay else len(POD_OF))
    for name, pod in found.items():
        container, before = pod["containers"][0], plain[name]["containers"][0]
        assert container["resources"]["limits"]["memory"] == "33Gi", name
        assert container["resources"]["requests"] == before["resources"]["requests"], name
        # Behind ours, so that an operator's word counts.
        assert container["env"] == [*before.get("env", []), *OWN["env"]], name
        for key in ("nodeSelector", "tolerations", "affinity"):
            assert pod[key] == OWN[key], name
        assert (
            OWN["volumes"][0] in pod["volumes"]
            and len(pod["volumes"]) == len(plain[name]["volumes"]) + 1
        )
        assert OWN["volumeMounts"][0] in container["volumeMounts"], name


def test_images_carry_the_version() -> None:
    """The chart's is the package's."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for given, expected in ((), version), (("image.version=1.2.3-rc1",), "1.2.3-rc1"):
        for name, pod in pods(render("npu", *given)):
            if name != "redis":
                tag = pod["containers"][0]["image"].rpartition(":")[2]
                assert tag == f"{expected}-{'npu' if name in ('rollout', 'trainer') else 'cpu'}"


def test_prometheus_gets_through_the_network_policies() -> None:
    """npu.yaml turns monitoring on."""
    [rule] = named(render("npu"), "NetworkPolicy", "monitoring")["spec"]["ingress"]
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert rule == {"from": [where], "ports": [{"port": 7980}]}
    without = render("npu", "monitoring.enabled=false")
    assert not [one for one in without if one["metadata"]["name"] == "demo-monitoring"]


def allowed_in(pod: dict[str, Any]) -> list[str]:
    [container] = pod["containers"]
    [entries] = [one["value"] for one in container["env"] if one["name"] == "TRIMARAN_ALLOW"]
    return entries.split("\n")


def test_what_is_allowed_reaches_the_manager_the_rewards_and_the_environments(
    tmp_path: Path,
) -> None:
    allow = {"sinks": ["wandb"], "rules": ["gsm8k"]}
    code = {"functions": ["/rewards/mine.py:score"], "commands": ["command npx server"]}
    values = (f"manager.allow={json.dumps(allow | code)}", "environment.replicas=2")
    objects = render("npu", json_values=values)
    settings = manager_settings(objects, tmp_path)
    assert settings.allow and settings.allowed
    assert (list(settings.allow.sinks), list(settings.allow.rules or ())) == (["wandb"], ["gsm8k"])
    found = dict(pods(objects))
    for name in ("reward", "environment"):
        assert allowed_in(found[name]) == code["functions"] + code["commands"], name
    assert found["environment"]["containers"][0]["args"][:2] == ["serve", "environment"]
    assert named(objects, "Deployment", "environment")["spec"]["replicas"] == 2


def test_without_words_every_rule_is_allowed_and_no_environment_is_there(tmp_path: Path) -> None:
    every = manager_settings(render("npu"), tmp_path).allow
    assert every and every.rules is None
    assert "environment" not in dict(pods(render("npu")))


@contextmanager
def cluster_with(objects: tuple[dict[str, Any], ...], secret: dict[str, Any]) -> Iterator[str]:
    """As much of an API server as Helm asks for: the kinds of these objects, and one secret that is there."""
    answers: dict[str, Any] = {"/version": {"gitVersion": "v1.33.0"}, "/api": {"versions": ["v1"]}}
    groups: list[dict[str, Any]] = []
    for one in objects:
        version, kind = one["apiVersion"], one["kind"]
        root = f"/{'apis' if '/' in version else 'api'}/{version}"
        if root not in answers:
            answers[root] = {"groupVersion": version, "resources": []}
            group, _, number = version.rpartition("/")
            groups.append(
                {"name": group, "versions": [{"groupVersion": version, "version": number}]}
            )
        plural = {"name": f"{kind.lower()}s", "kind": kind, "namespaced": True, "verbs": ["get"]}
        answers[root]["resources"].append(plural)
    answers["/apis"] = {"groups": [group for group in groups if group["name"]]}
    answers["/api/v1/namespaces/lab/secrets/" + secret["metadata"]["name"]] = secret

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            missing = {"apiVersion": "v1", "kind": "Status", "reason": "NotFound"}
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(found or missing).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_an_upgrade_keeps_the_clients_that_were_added() -> None:
    before = render("cpu")
    secret = named(before, "Secret", "clients")
    data = secret_data(secret)
    line = f"- {{name: ada, owner: ada, role: viewer, sha256: {digest('a-token-of-ada')}}}\n"
    added = {**data, "clients.yaml": data["clients.yaml"].rstrip() + "\n" + line}
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in added.items()}
    owner = {"meta.helm.sh/release-name": "demo", "meta.helm.sh/release-namespace": "lab"}
    there = {**secret, "metadata": {**secret["metadata"], "annotations": owner}, "data": encoded}
    with cluster_with(before, there) as address:
        done = helm(
            *("template", "demo", CHART, "--namespace=lab", "--values", CHART / "cpu.yaml"),
            *("--dry-run=server", "--disable-openapi-validation", f"--kube-apiserver={address}"),
        )
    assert done.returncode == 0, done.stderr
    objects = tuple(filter(None, yaml.safe_load_all(done.stdout)))
    assert secret_data(named(objects, "Secret", "clients")) == added


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("rollout.replicas=0", "/rollout/replicas"),
        ("rollout.replica=2", "'replica'"),
        ("rollout.hosts=2", "rollout.hosts: 2 hosts have no equal parts of a replica's 1 devices"),
        ("redis.address=redis://user:secret@host:6379", "/redis/address"),
        ("rollout.pool=h100", "rollout.pool: there is no pool h100; pools has cpu"),
        ("network.trusted=false", "network.trusted"),
        ("kuberay.enabled=true", "kuberay.image"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(value: str, key: str) -> None:
    done = helm("template", "demo", CHART, "--values", CHART / "cpu.yaml", f"--set={value}")
    assert done.returncode != 0
    assert key in done.stderr


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("values", [(), TLS], ids=["plain", "tls"])
def test_the_services_take_their_command_lines(device: str, values: tuple[str, ...]) -> None:
    for name, words_ in ours(render(device, *values)).items():
        options = parse(words_)
        if options.command == "serve":
            assert options.kind == name
            assert (options.tls_name == "services") == bool(values)
            assert options.index is None if name == "rollout" else options.index == 0


def test_the_command_lines_are_those_of_compose() -> None:
    for name, words_ in ours(render("cpu")).items():
        theirs = vars(parse(words(load("cpu")["services"][name])))
        own = vars(parse(words_))
        if name == "manager":  # the file lies elsewhere
            assert own.pop("config") and theirs.pop("config")
        assert own == theirs, name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("values", [(), TLS], ids=["plain", "tls"])
def test_the_manager_takes_its_configuration(
    device: str, values: tuple[str, ...], tmp_path: Path
) -> None:
    objects = render(device, *values)
    settings = manager_settings(objects, tmp_path)
    settings.check_submissions()
    settings.check_services()
    settings.check_launcher()
    assert settings.store_url == named(objects, "ConfigMap", "config")["data"]["store"]
    slots = {name: (pool.device, pool.slots) for name, pool in settings.pools.items()}
    expected = {"cpu": (8, 1), "cuda": (16, 4), "npu": (16, 8)}[device]
    assert slots == {"rollout": (device, expected[0]), "trainer": (device, expected[1])}


def test_the_plugin_may_be_called_and_the_run_may_name_it(tmp_path: Path) -> None:
    objects = render("cpu")
    service = named(objects, "Service", "plugin")
    url = f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    Allowed.from_entries(allowed_in(dict(pods(objects))["reward"])).check_url(url, "url")
    settings = manager_settings(objects, tmp_path)
    assert settings.allow and url in settings.allow.plugin_hosts
    assert settings.allow.plugin_credentials[url].token_variable == "TRIMARAN_BREVITY_TOKEN"


def test_the_clients_tokens_are_those_of_the_file(tmp_path: Path) -> None:
    data = secret_data(named(render("cpu"), "Secret", "clients"))
    path = tmp_path / "clients.yaml"
    path.write_text(data["clients.yaml"])
    path.chmod(0o600)
    clients = {client.identity.name: client for client in read_clients(path)}
    assert {name: client.sha256 for name, client in clients.items()} == {
        name: digest(data[f"{name}.token"]) for name in ("demo", "prometheus")
    }
    # The manager's own numbers are for operators.
    assert clients["prometheus"].identity.role == "operator"


@pytest.mark.parametrize("device", DEVICES)
def test_no_secret_is_in_a_pod_or_a_configuration(device: str) -> None:
    objects = render(device, *TLS)
    secrets: set[str] = set()
    for one in objects:
        if one["kind"] == "Secret":
            secrets |= {v for k, v in secret_data(one).items() if k != "clients.yaml"}
    assert len(secrets) == 5 and all(len(secret) == 48 for secret in secrets)
    elsewhere = yaml.safe_dump([one for one in objects if one["kind"] != "Secret"])
    assert not any(secret in elsewhere for secret in secrets)


@pytest.mark.skipif(PROGRAM is None, reason=WHY_SKIPPED)
def test_redis_asks_for_the_password_and_keeps_what_it_acknowledges(tmp_path: Path) -> None:
    """As its container starts it, with other folders and another port."""
    container = dict(pods(render("cpu")))["redis"]["containers"][0]
    (tmp_path / "redis-password").write_text("a-password")
    port = split(LOOPBACK.free_address())[1]
    given = [*container["command"], *container["args"], "--port", str(port)]
    command = [re.sub(r"(?<![\w/])/(secrets|tmp|data)\b", str(tmp_path), word) for word in given]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port, password="a-password", retry=PATIENT) as client:
            kept = client.config_get("append*") | client.config_get("maxmemory-policy")
            expected = {"appendonly": "yes", "appendfsync": "always"}
            assert kept.items() >= (expected | {"maxmemory-policy": "noeviction"}).items()
        with redis.Redis(port=port) as client, pytest.raises(redis.AuthenticationError):
            client.ping()
    finally:
        server.terminate()
        assert server.wait(30) == 0
    assert b"a-password" not in b" ".join(word.encode() for word in command)


def test_a_name_without_tls_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.write_text("redis://localhost/0")
    where = ["--store-file", str(store), "--run-folder", str(tmp_path)]
    assert main(["serve", "reward", *where, "--tls-name", "services"]) == 2
    assert "--tls-name" in capsys.readouterr().err


def test_secrets_that_are_named_are_not_made() -> None:
    objects = render("cpu", "secrets.services=mine", "secrets.clients=theirs")
    assert not [one for one in objects if one["kind"] == "Secret"]
    volumes = {v["name"]: v for v in dict(pods(objects))["manager"]["volumes"]}
    assert volumes["clients"]["secret"]["secretName"] == "theirs"
    assert volumes["secrets"]["projected"]["sources"][0]["secret"]["name"] == "mine"


@pytest.mark.parametrize(
    "values",
    [(), SETS, ("kuberay.enabled=true", "kuberay.image=ours:1")],
    ids=["pods", "sets", "kuberay"],
)
@pytest.mark.parametrize("device", DEVICES)
def test_every_container_is_as_narrow_as_it_can_be(device: str, values: tuple[str, ...]) -> None:
    for name, pod in pods(render(device, *values)):
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] == 10001, name
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["terminationGracePeriodSeconds"] == 60, name
        mounted = {volume["name"] for volume in pod["volumes"]} | {"data"}
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"] is True, name
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            assert {mount["name"] for mount in container["volumeMounts"]} <= mounted, name


@pytest.mark.parametrize("values", [(), SETS], ids=["pods", "sets"])
@pytest.mark.parametrize("device", DEVICES)
def test_every_service_is_asked_for_its_health_and_no_python_writes_outside(
    device: str, values: tuple[str, ...]
) -> None:
    for name, pod in pods(render(device, *values)):
        container = pod["containers"][0]
        words_ = container["livenessProbe"]["exec"]["command"]
        assert words_ == ["redis-cli", "ping"] if name == "redis" else parse(words_[1:])
        paths = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert name == "redis" or "/tmp" in paths
        if name in ("rollout", "trainer"):
            assert {"/dev/shm", "/cache", "/runs"} <= paths


@pytest.mark.parametrize("device", ["cuda", "npu"])
def test_replicas_and_ranks_ask_for_their_devices(device: str) -> None:
    found = dict(pods(render(device)))
    for name, count in (("rollout", 2), ("trainer", 1)):
        assert devices_of(found[name]["containers"][0]) == {RESOURCES[device]: count}
        assert found[name]["nodeSelector"]
    assert not devices_of(found["controller"]["containers"][0])


def config_on(hosts: int) -> RunConfig:
    rollout = {"tensor_parallel": 2 * hosts, "hosts": hosts, "replicas": 3, "max_replicas": 3}
    needed = {"model": {"path": "m"}, "data": {"train": "d"}, "reward": {"rules": {"gsm8k": 1}}}
    return parse_config({**needed, "rollout": rollout})


def argv_of(container: dict[str, Any], pod: str, folder: Path) -> list[str]:
    """What the container's shell starts, with programs in place of ours."""
    (folder / "trimaran").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (folder / "with-cann").write_text('#!/bin/sh\nexec "$@"\n')
    for program in folder.iterdir():
        program.chmod(0o755)
    init, dashes, *shell = container["command"]
    assert (init, dashes) == ("tini", "--")
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOSTNAME": pod}
    command = [*shell, *container["args"]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hosts", [2, 3])
def test_the_pods_of_a_set_are_a_replica_and_its_followers(
    device: str, hosts: int, tmp_path: Path
) -> None:
    """Whichever number a pod has: three sets are three whole replicas."""
    values = f"rollout.devices={2 * hosts}", f"rollout.hosts={hosts}", "rollout.replicas=3"
    objects = render(device, *values)
    found = named(objects, "StatefulSet", "rollout")["spec"]
    assert found["replicas"] == 3 * hosts
    assert found["podManagementPolicy"] == "Parallel"
    assert named(objects, "Service", "rollout")["spec"]["clusterIP"] == "None"
    assert found["serviceName"] == "demo-rollout"
    assert not [
        o for o in objects if (o["kind"], o["metadata"]["name"]) == ("Deployment", "demo-rollout")
    ]
    [container] = found["template"]["spec"]["containers"]
    assert devices_of(container) == ({} if device == "cpu" else {RESOURCES[device]: 2})
    config, places = config_on(hosts), list[tuple[int, int]]()
    for number in range(3 * hosts):
        options = parse(argv_of(container, f"demo-rollout-{number}", tmp_path))
        assert options.store_file == "/secrets/store" and options.command == "serve"
        places.append(part_of(config, options.kind, options.index))
    assert places == [divmod(number, hosts) for number in range(3 * hosts)]


def test_values_of_a_release_from_before_mean_one_host() -> None:
    """`helm upgrade --reuse-values` brings none for a key that is new."""
    assert named(render("npu", "rollout.hosts=null"), "Deployment", "rollout")


def test_the_manager_counts_the_devices_of_whole_replicas(tmp_path: Path) -> None:
    settings = manager_settings(render("npu", *SETS, "rollout.maxReplicas=6"), tmp_path)
    assert settings.pools["rollout"].slots == 6 * 16
    need = Need("npu", 16, {"trimaran_rollout": "yes"}, hosts=2)
    pools = {pool.name: pool for pool in settings.find_pools()}
    assert place_replica(need, pools, {"rollout": 96}) == {"rollout": 16}


def test_a_ray_cluster_has_a_worker_for_each_host_of_a_replica() -> None:
    kuberay = "kuberay.enabled=true", "kuberay.image=ours:1", "rollout.maxReplicas=6"
    [cluster] = [o for o in render("npu", *SETS, *kuberay) if o["kind"] == "RayCluster"]
    group = cluster["spec"]["workerGroupSpecs"][0]
    assert (group["groupName"], group["replicas"], group["maxReplicas"]) == ("rollout", 8, 12)
    assert json.loads(json.loads(group["rayStartParams"]["resources"]))["NPU"] == 8
    [container] = group["template"]["spec"]["containers"]
    assert devices_of(container) == {RESOURCES["npu"]: 8}


def test_a_bucket_takes_the_claims_place_and_its_keys_go_to_few(tmp_path: Path) -> None:
    objects = render("cuda")
    assert not [one for one in objects if one["kind"] == "PersistentVolumeClaim"]
    holders = {name for name, pod in pods(objects) if pod["containers"][0].get("envFrom")}
    assert holders == {"manager", "controller", "rollout", "trainer"}
    settings = manager_settings(objects, tmp_path)
    assert settings.allow and [str(p) for p in settings.allow.payloads] == ["s3://trimaran"]


KEYS_OF_SERVICES = {"services/token", "services/redis-password"}
KEYS = {
    "redis": {"services/redis-password"},
    "manager": KEYS_OF_SERVICES | {"clients/clients.yaml", "clients/demo.token"},
    "reward": KEYS_OF_SERVICES | {"services/plugin-token"},
    "plugin": {"services/plugin-token"},
    "weight-sync": KEYS_OF_SERVICES,
    "controller": KEYS_OF_SERVICES,
    "trainer": KEYS_OF_SERVICES,
    "rollout": KEYS_OF_SERVICES,
}
"""Pod -> keys of the release's secrets that it mounts. In an environment are a bucket's alone."""


def secret_keys(pod: dict[str, Any]) -> Iterator[str]:
    for volume in pod["volumes"]:
        for source in volume.get("projected", {}).get("sources", [volume]):
            if secret := source.get("secret"):
                name = (secret.get("secretName") or secret["name"]).removeprefix("demo-")
                yield from (f"{name}/{item['key']}" for item in secret["items"])


@pytest.mark.parametrize("values", [(), SETS], ids=["pods", "sets"])
@pytest.mark.parametrize("device", DEVICES)
def test_who_may_see_which_secret(device: str, values: tuple[str, ...]) -> None:
    objects = render(device, *values)
    seen = {name: set(secret_keys(pod)) for name, pod in pods(objects)}
    expected = dict(KEYS)
    if device != "cpu":  # without the example
        del expected["plugin"]
        expected["reward"] = KEYS_OF_SERVICES
    assert seen == expected
    for _, pod in pods(objects):
        for container in pod["containers"]:
            assert not any("valueFrom" in one for one in container.get("env", []))


def test_who_shares_the_claim() -> None:
    def is_shared(pod: dict[str, Any]) -> bool:
        [volume] = [volume for volume in pod["volumes"] if volume["name"] == "runs"]
        return "persistentVolumeClaim" in volume

    alone = {"redis", "plugin"}
    shared = {name for name, pod in pods(render("cpu")) if name not in alone and is_shared(pod)}
    assert shared == {"manager", "controller", "trainer"}


def test_rewards_may_go_nowhere() -> None:
    """They run what a model has written."""
    for one in render("cuda"):
        if one["kind"] == "NetworkPolicy" and "Egress" in one["spec"]["policyTypes"]:
            for rule in one["spec"]["egress"]:
                is_dns = {port["port"] for port in rule.get("ports", [])} == {53}
                others = one["spec"]["podSelector"].get("matchExpressions", [{"values": []}])
                assert is_dns or "to" in rule or "reward" in others[0]["values"]


def test_the_rules_are_those_of_deploy_prometheus() -> None:
    rules = named(render("npu"), "PrometheusRule", "rules")
    assert rules["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text())


@pytest.mark.parametrize("device", DEVICES)
def test_a_ray_cluster_in_their_place(device: str, tmp_path: Path) -> None:
    """That it renders, and that the manager takes what it is given."""
    objects = render(device, "kuberay.enabled=true", "kuberay.image=ours:1")
    kinds = [one["kind"] for one in objects]
    assert "RayCluster" in kinds
    found = dict(pods(objects))
    assert not {"trainer-0", "controller", "reward"} & set(found)
    manager = found["head"]["containers"][1]
    options = parse(manager["args"])
    assert (options.launcher, options.ray_address) == ("ray", "127.0.0.1:6379")
    settings = manager_settings(objects, tmp_path)
    settings.check_launcher()
    documented = dict(re.findall(r"(RAY_health_check_\w+)=(\d+)", DEPLOY.read_text()))
    for name in ("head", "rollout", "trainer"):
        shown = {one["name"]: one.get("value") for one in found[name]["containers"][0]["env"]}
        assert len(documented) == 3 and documented.items() <= shown.items(), name


def test_no_other_user_may_exchange_the_example() -> None:
    """Everybody may write into an emptyDir's own folder, and the manager takes no model from such a one."""
    objects = render("cpu")
    empty = {
        volume["name"]
        for _, pod in pods(objects)
        for volume in pod["volumes"]
        if "emptyDir" in volume
    }
    for name, pod in pods(objects):
        for mount in pod["containers"][0]["volumeMounts"]:
            if mount["mountPath"] in ("/models", "/examples") and mount["name"] in empty:
                assert mount["subPath"] == mount["mountPath"].lstrip("/"), name
                [command] = [one["command"] for one in pod["initContainers"]]
                assert mount["mountPath"] in command, name
