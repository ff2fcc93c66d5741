"""The programs of a node: Kubernetes 1.20.2, built from Debian's source package into .cache/kubernetes.

Once, in some ten minutes of CPU time. It is the oldest version that the chart is for.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".cache/kubernetes"
PROGRAMS = (
    *("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    *("kubelet", "kube-proxy"),
)
NEWER = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
"""The vendored one crashes the API server when a newer Go compiled it."""
NEEDED = {
    "etcd": "Debian's etcd-server",
    "openssl": "Debian's openssl",
    "unshare": "Debian's util-linux",
}
NEEDED_TO_BUILD = {
    "apt-get": "this builds from a source package of Debian 12",
    "dpkg-source": "Debian's dpkg-dev",
    "go": "Debian's golang-go",
    "make": "Debian's make",
    "rsync": "Debian's rsync",
    str(NEWER): "Debian's golang-github-modern-go-reflect2-dev",
}
APT = Path("/etc/apt")
BUILD_SECONDS = 7200


def find(program: str) -> Path:
    return FOLDER / "bin" / program


def are_built() -> bool:
    return all(find(program).is_file() for program in PROGRAMS)


def build() -> None:
    """Those that lack. What it prints goes to .cache/kubernetes/build.log. Raises SystemExit."""
    if are_built():
        return
    print(f"Kubernetes is built, once; {FOLDER}/build.log tells how far it is", file=sys.stderr)
    shutil.rmtree(FOLDER / "build", ignore_errors=True)
    source = _fetch(FOLDER / "build")
    vendored = source / "vendor/github.com/modern-go/reflect2"
    shutil.rmtree(vendored)
    shutil.copytree(NEWER, vendored)
    go = FOLDER / "build/go"
    (go / "src/k8s.io").mkdir(parents=True)
    (go / "src/k8s.io/kubernetes").symlink_to(source)
    what = " ".join(f"cmd/{program}" for program in PROGRAMS)
    # Without the clients of clouds, which take half of the time.
    variables = {"GOFLAGS": "-tags=providerless", "GO111MODULE": "off", "CGO_ENABLED": "0"}
    _run(source, "make", f"WHAT={what}", GOPATH=str(go), **variables)
    (FOLDER / "bin").mkdir(exist_ok=True)
    for program in PROGRAMS:
        shutil.move(source / "_output/bin" / program, find(program))
    shutil.rmtree(FOLDER / "build")


def for_sources(listed: str) -> str:
    """The same archives, asked for source packages; `listed`: in either of apt's two forms.

    Example: for_sources("deb http://mirror/debian bookworm main") begins with "deb-src http"
    """
    listed = re.sub(r"^Types:.*$", "Types: deb-src", listed, flags=re.MULTILINE)
    return re.sub(r"^deb(?=\s)", "deb-src", listed, flags=re.MULTILINE)


def _fetch(folder: Path) -> Path:
    """Where it is unpacked. With apt's lists in that folder: the machine's own stay as they are."""
    for name in ("lists/partial", "cache/archives/partial", "sources"):
        (folder / name).mkdir(parents=True)
    for path in (APT / "sources.list", *(APT / "sources.list.d").glob("*")):
        if path.is_file():
            (folder / "sources" / path.name).write_text(for_sources(path.read_text()))
    options = {
        "Dir::Etc::sourcelist": "-",
        "Dir::Etc::sourceparts": folder / "sources",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "--quiet", *(f"--option={key}={value}" for key, value in options.items())]
    _run(folder, *apt, "update")
    _run(folder, *apt, "source", "kubernetes")
    [source] = folder.glob("kubernetes-*/")
    return source


def _run(folder: Path, *command: str, **variables: str) -> None:
    log = FOLDER / "build.log"
    with log.open("ab") as file:
        done = subprocess.run(
            ["nice", *command],
            cwd=folder,
            env=os.environ | variables,
            stdout=file,
            stderr=file,
            timeout=BUILD_SECONDS,
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{log.read_text(errors='replace')[-3000:]}")
