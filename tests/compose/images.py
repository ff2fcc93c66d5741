"""The images of the test: those of deploy/docker, on a base made of Debian's packages."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = "trimaran-test"
BASE = "trimaran-test/base"
WHEELS = "trimaran-test/wheels"
STAND_INS = {"REDIS_IMAGE": "redis", "PROMETHEUS_IMAGE": "prometheus"}
KINDS = ("control", "demo", "rollout", "trainer")
PACKAGES = "python3,python3-venv,ca-certificates"
PATH = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BUILD_SECONDS = 1800
NUM_STEPS = "60"
"""Of the run: enough for all that is done to it."""


def variables() -> dict[str, str]:
    """What compose and its files take from the environment, for images that are made here."""
    images = {key: f"trimaran-test/{name}" for key, name in STAND_INS.items()}
    certificates = os.environ.get("SSL_CERT_FILE", "/dev/null")
    return images | {
        "COMPOSE_FILE": str(ROOT / "deploy/compose/cpu.yaml"),
        "COMPOSE_PROJECT_NAME": PROJECT,
        "IMAGE": "trimaran-test/trimaran",
        "BASE": BASE,
        "WHEELS": WHEELS,
        "BUILD_NETWORK": "host",
        "STEPS": NUM_STEPS,
        "CERTIFICATES": certificates,
    }


def build(folder: Path, environment: Mapping[str, str], kinds: Sequence[str] = KINDS) -> None:
    """All of them; what has not changed comes from the engine's cache."""
    if not _has(BASE, environment):
        archive = folder / "base.tar"
        _run(
            environment,
            "mmdebstrap",
            "--variant=minbase",
            f"--include={PACKAGES}",
            "bookworm",
            archive,
        )
        _run(environment, "/usr/bin/docker", "import", "--change", PATH, archive, BASE)
        archive.unlink()
    if not _has(WHEELS, environment):
        _import_wheels(environment)
    for name in STAND_INS.values():
        command = ["/usr/bin/docker", "build", "--quiet", "--network=host", f"--target={name}"]
        command += [f"--build-arg=BASE={BASE}", f"--tag=trimaran-test/{name}", "-"]
        file = (ROOT / "tests/compose/Containerfile").read_bytes()
        subprocess.run(
            command, env=dict(environment), input=file, check=True, timeout=BUILD_SECONDS
        )
    for kind in kinds:
        _build_kind(kind, environment)


def _build_kind(kind: str, environment: Mapping[str, str]) -> None:
    given = variables()
    command = ["/usr/bin/docker", "build", "--quiet", "--network=host", f"--target={kind}"]
    command += ["--file", "deploy/docker/Containerfile", f"--tag={given['IMAGE']}-{kind}:cpu"]
    command += [f"--build-arg={name}={given[name]}" for name in ("BASE", "WHEELS")]
    command += ["--secret", f"id=certificates,src={given['CERTIFICATES']}", "."]
    _run(environment, *command)


def sizes(environment: Mapping[str, str]) -> dict[str, int]:
    """Of our images, in MB."""
    names = [f"{variables()['IMAGE']}-{kind}:cpu" for kind in KINDS]
    answer = _run(environment, "/usr/bin/docker", "image", "inspect", *names)
    return {
        kind: round(image["Size"] / 1e6)
        for kind, image in zip(KINDS, json.loads(answer), strict=True)
    }


def _import_wheels(environment: Mapping[str, str]) -> None:
    """Those of this machine, where pip knows of some: PyTorch's index may be out of reach."""
    folder = os.environ.get("PIP_FIND_LINKS", "")
    archive = ["tar", "-C", folder, "-c", "."] if Path(folder).is_dir() and folder else []
    archive = archive or ["tar", "-c", "-T", "/dev/null"]
    with subprocess.Popen(archive, stdout=subprocess.PIPE) as tar:
        command = ["/usr/bin/docker", "import", "-", WHEELS]
        subprocess.run(command, env=dict(environment), stdin=tar.stdout, check=True, timeout=600)


def _has(image: str, environment: Mapping[str, str]) -> bool:
    command = ["/usr/bin/docker", "image", "inspect", image]
    return subprocess.run(command, env=dict(environment), capture_output=True).returncode == 0


def _run(environment: Mapping[str, str], *command: str | Path) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout
