"""The operator's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.manager.settings import load_settings, pools_in_sight
from trimaran.errors import InputError
from trimaran.machine import Machine


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


def test_relative_paths_start_at_the_file_and_the_command_line_wins(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "folder: all\nclients: c.yaml\nallow: {models: [m]}\ntls: {certificate: a, key: b}\n"
        "pools: {x: {device: cuda, devices: [4, 5], labels: {memory: '80'}}}\n",
    )
    settings = load_settings(path)
    assert settings.folder == tmp_path / "all" and settings.clients == tmp_path / "c.yaml"
    assert settings.allow and settings.allow.plain.models == (tmp_path / "m",)
    assert settings.tls and settings.tls.key == tmp_path / "b"
    [pool] = settings.find_pools()
    assert (pool.devices, dict(pool.labels)) == (("4", "5"), {"memory": "80"})
    assert load_settings(path, {"folder": Path("/other")}).folder == Path("/other")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pool: {}", r"pool: unknown key; did you mean pools\? .known here: folder, store, "),
        ("limits: {run: 1}", r"limits.run: unknown key; did you mean limits.runs\?"),
        ("queue: {wieghts: {}}", r"queue.wieghts: unknown key; did you mean queue.weights\?"),
        (
            "pools: {x: {device: cuda, device_numbers: [1]}}",
            r"pools.x.device_numbers: unknown key; did you mean pools.x.devices\?",
        ),
        ("pools: {devices: {device: cuda, slot: 1}}", r"did you mean pools.devices.slots\?"),
        ("tls: {cert: a}", r"tls.certificate: missing; it must be given"),
        ("allow: {plugin_credentials: {h: {token: T}}}", r"did you mean .*\.h\.token_variable\?"),
        ("limits: 3", "limits: must be a section of runs, running"),
        ("pools: {x: {device: cuda}}", "lists devices"),
        ("pools: {x: {device: cpu, devices: [1]}}", "counts slots"),
        ("pools: {x: {device: cuda, devices: [1, 1]}}", "stands twice"),
        (
            "pools: {x: {device: cuda, devices: [1]}, y: {device: cuda, devices: [1]}}",
            "also stands in pools.x",
        ),
        ("- a", "sections"),
        ("a: [", "not YAML"),
        ("limits: {runs: -1}", "limits.runs"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_settings(write(tmp_path, text))
