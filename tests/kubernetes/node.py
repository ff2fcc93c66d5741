"""A Kubernetes cluster of one node, in namespaces that end with it.

`run_on_node` runs a command beside a node: in a network, mount and process namespace of its own, where
whatever a node mounts, changes or starts ends. There it starts etcd, the parts of Kubernetes and a DNS,
with a container engine of its own.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.compose.engine import BRIDGE, engine, which
from tests.compose.images import ROOT
from tests.kubernetes import names, tools
from tests.kubernetes.images import ENGINE, PAUSE
from tests.kubernetes.programs import find

NODE = "node"
ADDRESS = BRIDGE.partition("/")[0]
API = "https://127.0.0.1:6443"
SERVICES = "10.96.0.0/16"
START_SECONDS = 300.0
STOP_SECONDS = 20.0
SET_BY_KUBELET = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
OWN = ("/run", "/var/log", "/var/lib/dockershim", "/etc/kubernetes", "/opt/cni")
"""Folders of a machine that parts of a node write into, wherever else they are asked to."""
RUNC = """\
#!/bin/sh
# The kubelet wants its pods killed late when memory lacks; not everybody may say so (CAP_SYS_RESOURCE).
for word; do
  [ -f "$word/config.json" ] && sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "$word/config.json"
done
exec runc "$@"
"""


def run_on_node(folder: Path, *command: str) -> int:
    """With KUBECONFIG for kubectl and helm. `folder` takes all that the node writes. Its exit status."""
    # The shell is process 1 there, and reaps what nothing waits for.
    shell = ("sh", "-c", '"$@"; exit $?', "sh")
    namespaces = ("--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
    inside = (*shell, sys.executable, "-m", "tests.kubernetes.node", str(folder), *command)
    try:
        return subprocess.run(["unshare", *namespaces, *inside], cwd=ROOT).returncode
    finally:  # numbers of processes there: here they would be anybody's
        (ENGINE / "pid").unlink(missing_ok=True)
        shutil.rmtree(ENGINE / "exec", ignore_errors=True)


@contextmanager
def node(folder: Path) -> Iterator[Mapping[str, str]]:
    """The variables with which kubectl and helm reach it."""
    _make_private(folder)
    runc = folder / "runc"
    runc.write_text(RUNC)
    runc.chmod(0o755)
    options = ("--bip", BRIDGE, "--add-runtime", f"clamped={runc}", "--default-runtime=clamped")
    with engine(ENGINE, options=options) as environment, ExitStack() as stack:
        stack.callback(_remove_containers, environment)
        config, token = _credentials(folder)
        for command in _commands(folder, config, environment["DOCKER_HOST"]):
            stack.enter_context(_running(folder, *command))
            if command[0].endswith("apiserver"):
                _wait_for_api(token, folder)
        _make_volumes(folder, config)
        dns = names.server(ADDRESS, names.Api(API, token).find)
        threading.Thread(target=dns.serve_forever, daemon=True).start()
        stack.callback(dns.shutdown)
        yield {"KUBECONFIG": str(config)}


def _make_private(folder: Path) -> None:
    _run("ip", "link", "set", "lo", "up")
    for path in OWN:
        if Path(path).is_dir():
            _run("mount", "-t", "tmpfs", "tmpfs", path)
    for name in SET_BY_KUBELET:
        copy = folder / name.replace("/", ".")
        copy.write_text(Path("/proc/sys", name).read_text())
        _run("mount", "--bind", str(copy), f"/proc/sys/{name}")


def _credentials(folder: Path) -> tuple[Path, str]:
    """A configuration for all who call the API server, and the token in it; makes what it reads."""
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    _run("openssl", "genrsa", "-out", str(folder / "accounts.key"), "2048")
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "own",
        "contexts": [{"name": "own", "context": {"cluster": "own", "user": "admin"}}],
        "clusters": [{"name": "own", "cluster": {"server": API, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "admin", "user": {"token": token}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(tree))
    (folder / "resolv.conf").touch()
    return path, token


def _commands(folder: Path, config: Path, docker: str) -> Iterator[list[str]]:
    """Of the node's parts, in the order in which they start."""
    etcd = "http://127.0.0.1:2379"
    yield [
        "etcd",
        f"--data-dir={folder}/etcd",
        f"--listen-client-urls={etcd}",
        f"--advertise-client-urls={etcd}",
    ]
    yield [
        str(find("kube-apiserver")),
        f"--etcd-servers={etcd}",
        f"--service-cluster-ip-range={SERVICES}",
        f"--token-auth-file={folder}/tokens.csv",
        f"--cert-dir={folder}/certificates",
        f"--service-account-key-file={folder}/accounts.key",
        f"--service-account-signing-key-file={folder}/accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=RBAC",
        f"--advertise-address={ADDRESS}",
        "--kubelet-preferred-address-types=InternalIP",
    ]
    yield [
        str(find("kube-controller-manager")),
        f"--kubeconfig={config}",
        f"--service-account-private-key-file={folder}/accounts.key",
        "--leader-elect=false",
    ]
    yield [str(find("kube-scheduler")), f"--kubeconfig={config}", "--leader-elect=false"]
    yield [
        str(find("kubelet")),
        f"--kubeconfig={config}",
        f"--hostname-override={NODE}",
        f"--node-ip={ADDRESS}",
        f"--root-dir={folder}/kubelet",
        f"--cert-dir={folder}/certificates",
        "--container-runtime=docker",
        f"--docker-endpoint={docker}",
        f"--pod-infra-container-image={PAUSE}",
        f"--cluster-dns={ADDRESS}",
        f"--cluster-domain={names.DOMAIN}",
        f"--resolv-conf={folder}/resolv.conf",
        # Kubernetes 1.20 notices that a container has started only when it looks at its pod anyway.
        "--sync-frequency=5s",
        # It takes the machine as it is: no groups of its own, no sweeping when a disk is full.
        "--cgroups-per-qos=false",
        "--enforce-node-allocatable=",
        "--fail-swap-on=false",
        "--eviction-hard=",
        "--image-gc-high-threshold=100",
    ]
    yield [
        str(find("kube-proxy")),
        f"--kubeconfig={config}",
        f"--hostname-override={NODE}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={BRIDGE}",
        # The machine's limits of connections stay as they are.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    ]


@contextmanager
def _running(folder: Path, *command: str) -> Iterator[None]:
    """What it says goes to a file of its name."""
    with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_api(token: str, folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    api = names.Api(API, token)
    while time.monotonic() < deadline:
        try:
            if api.find(f"kubernetes.default.svc.{names.DOMAIN}"):
                return
        except OSError:
            pass
        time.sleep(0.5)
    said = (folder / "kube-apiserver.log").read_text(errors="replace")[-2000:]
    raise SystemExit(f"the API server did not start:\n{said}")


def _make_volumes(folder: Path, config: Path) -> None:
    """For claims: nothing here makes one when it is asked for."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    volumes: list[dict[str, Any]] = []
    for name in ("first", "second"):
        path = folder / "volumes" / name
        path.mkdir(parents=True)
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        }
        volumes.append(
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
            | {"spec": spec}
        )
    (folder / "volumes.yaml").write_text(yaml.safe_dump_all(volumes))
    kubectl = (str(tools.find("kubectl")), f"--kubeconfig={config}")
    _run(*kubectl, "create", f"--filename={folder}/volumes.yaml")


def _remove_containers(environment: Mapping[str, str]) -> None:
    """Those that were not removed while there was a kubelet."""
    command = [str(which("docker")), "ps", "--all", "--quiet"]
    left = subprocess.run(command, env=environment, capture_output=True, text=True).stdout.split()
    if left:
        _run(str(which("docker")), "rm", "--force", "--volumes", *left, env=environment)


def _run(*command: str, env: Mapping[str, str] | None = None) -> None:
    subprocess.run(command, check=True, timeout=60, env=env, capture_output=True)


def main(folder: Path, command: list[str]) -> int:
    with node(folder) as variables:
        return subprocess.run(command, env=os.environ | variables).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
