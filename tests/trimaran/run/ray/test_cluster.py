"""Ray is optional: what is said without it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commands.cli.main import main
from services.manager.settings import ManagerSettings
from trimaran.errors import InputError
from trimaran.run.ray.cluster import MISSING, Cluster, ray_address


def test_without_ray_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'trimaran\[ray\]'"):
        Cluster("auto").connect()


def test_a_run_without_ray_ends_before_it_has_a_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run.yaml"
    run.write_text("{model: {path: m}, data: {train: t}, reward: {rules: {gsm8k: 1}}}")
    assert main(["train", str(run), "--launcher", "ray"]) == 2
    assert capsys.readouterr().err.splitlines() == [f"error: {MISSING}"]
    assert not (tmp_path / "runs").exists()


def test_ray_address_is_that_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    assert ray_address() == "10.0.0.9:6379"
    words = ["train", "nothing.yaml", "--launcher", "ray", "--ray-address", "10.0.0.1:6380"]
    assert main(words) == 2 and "nothing.yaml" in capsys.readouterr().err
    assert ray_address() == "10.0.0.1:6380"


def test_a_manager_on_ray_needs_a_store_that_all_reach_and_no_pools_of_its_own() -> None:
    given = {"launcher": "ray", "pools": {"host": {"device": "cpu", "slots": 8}}}
    with pytest.raises(InputError) as caught:
        ManagerSettings.model_validate(given).check_launcher()
    first, second = str(caught.value).splitlines()
    assert first.startswith("launcher: ray: store: a file of this machine")
    assert second == "launcher: ray: pools: the nodes of the cluster are the pools; leave them out"
    ManagerSettings(launcher="ray", store="redis://10.0.0.1:6379/0").check_launcher()
