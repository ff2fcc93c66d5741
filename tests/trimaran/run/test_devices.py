"""Which process sees which devices. The machines are made up; nothing here looks at this one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.launch.local.endpoints import fill_endpoints
from commands.launch.run_services import run_services
from tests.configs import configure
from trimaran.config import RunConfig, parse_config
from trimaran.errors import InputError
from trimaran.host.machine import Machine
from trimaran.run.placement import PLACED, Placement, place, placed_environment

NPU_VARIABLES = {"ASCEND_HOME_PATH": "/usr/local/Ascend/cann", "ATB_HOME_PATH": "/usr/local/nnal"}
APART = {"trainer": {"device": "cuda"}, "rollout": {"device": "npu"}}
NPU_PACKAGES = frozenset(["torch_npu", "vllm_ascend", "mindspeed", "scipy", "triton"])


def npu_machine(num_npus: int = 8, shown: str | None = None, num_gpus: int = 0) -> Machine:
    variables = NPU_VARIABLES | ({} if shown is None else {"ASCEND_RT_VISIBLE_DEVICES": shown})
    return Machine(variables, NPU_PACKAGES, num_npus, num_gpus)


def gpu_machine(num_gpus: int = 8, shown: str | None = None) -> Machine:
    return Machine(
        {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}, frozenset(), 0, num_gpus
    )


def make_config(
    replicas: int = 1,
    rollout_tp: int = 1,
    ranks: int = 1,
    sections: Mapping[str, dict[str, Any]] = {},
) -> RunConfig:
    """`sections` replace keys that the numbers give."""
    given: dict[str, dict[str, Any]] = {
        "rollout": {"replicas": replicas, "tensor_parallel": rollout_tp},
        "trainer": {"data_parallel": ranks},
        "run": {"groups_per_step": ranks},
    }
    for name, keys in sections.items():
        given[name] = given.get(name, {}) | keys
    return configure(**given)


def on(*devices: int | str, **more: Any) -> dict[str, Any]:
    return {"devices": list(devices), **more}


def shares(placement: Placement, pool: str) -> list[str]:
    return [",".join(share) for share in placement.pools[pool].shares]


@pytest.mark.parametrize(
    ("machine", "variable"),
    [(npu_machine(5), "ASCEND_RT_VISIBLE_DEVICES"), (gpu_machine(5), "CUDA_VISIBLE_DEVICES")],
)
def test_each_process_sees_its_own_devices_by_the_vendors_variable(
    machine: Machine, variable: str
) -> None:
    placement = place(make_config(replicas=2, rollout_tp=2), machine)
    seen = [placement.variables("trainer", 0)]
    seen += [placement.variables("rollout", index) for index in (0, 1)]
    assert [variables[variable] for variables in seen] == ["0", "1,2", "3,4"]
    assert placement.variables("reward", 0) == {}


def test_gpus_with_uuids_are_shared_out_by_auto() -> None:
    placement = place(make_config(), gpu_machine(shown="GPU-ab12,GPU-cd34"))
    assert shares(placement, "rollout") == ["GPU-cd34"]


def test_lists_are_taken_as_they_stand() -> None:
    config = make_config(2, 2, sections={"trainer": on(6), "rollout": on(4, 5, 0, 2)})
    placement = place(config, npu_machine())
    assert (shares(placement, "trainer"), shares(placement, "rollout")) == (["6"], ["4,5", "0,2"])


def test_pools_on_different_kinds_take_each_their_own() -> None:
    on_host = place(make_config(sections={"trainer": {"device": "cpu"}}), npu_machine(1))
    assert shares(on_host, "rollout") == ["0"]
    assert on_host.variables("trainer", 0) == {PLACED: "trainer-0"}
    config = make_config(sections=APART)
    apart = place(config, npu_machine(1, num_gpus=1))
    assert apart.variables("trainer", 0)["CUDA_VISIBLE_DEVICES"] == "0"
    assert apart.variables("rollout", 0)["ASCEND_RT_VISIBLE_DEVICES"] == "0"


def test_a_machine_without_accelerators_needs_none() -> None:
    placement = place(make_config(replicas=64, ranks=8), Machine({}, frozenset(), 0, 0))
    assert placement.variables("rollout", 63) == {PLACED: "rollout-63"}
    assert placement.num_devices == 0


@settings(max_examples=40)
@given(
    replicas=st.integers(1, 64),
    rollout_tp=st.integers(1, 8),
    ranks=st.integers(1, 64),
    spare=st.integers(-3, 64),
    listed=st.sampled_from([(), ("trainer",), ("rollout",), ("trainer", "rollout")]),
    random=st.randoms(use_true_random=False),
)
def test_shares_are_disjoint_in_order_and_of_the_right_size(
    replicas: int, rollout_tp: int, ranks: int, spare: int, listed: tuple[str, ...], random: Random
) -> None:
    needed = {"trainer": ranks, "rollout": replicas * rollout_tp}
    num_visible = max(1, sum(needed.values()) + spare)
    visible = sorted(random.sample(range(640), num_visible))
    machine = npu_machine(640, ",".join(map(str, visible)))
    if spare < 0:
        with pytest.raises(InputError, match=r"(trainer|rollout)\.devices: auto needs"):
            place(make_config(replicas, rollout_tp, ranks), machine)
        return
    left, lists = visible, dict[str, dict[str, Any]]()
    for pool in listed:
        lists[pool] = {"devices": left[-needed[pool] :]}
        left = left[: -needed[pool]]
    pools = place(make_config(replicas, rollout_tp, ranks, lists), machine).pools
    assert [len(share) for share in pools["trainer"].shares] == [1] * ranks
    assert [len(share) for share in pools["rollout"].shares] == [rollout_tp] * replicas
    trainer, rollout = (list(map(int, chain(*pools[p].shares))) for p in ("trainer", "rollout"))
    if not listed:
        assert trainer + rollout == visible[: len(visible) - spare]
    assert trainer == lists.get("trainer", {}).get("devices", sorted(trainer))
    assert rollout == lists.get("rollout", {}).get("devices", sorted(rollout))
    assert not set(trainer) & set(rollout)
    assert {*trainer, *rollout} <= set(visible)


def test_lists_may_hold_uuids_as_the_variable_does() -> None:
    lists = {"trainer": on("GPU-8932f937"), "rollout": on("MIG-dc4d", "MIG-GPU-ab12/1/0")}
    config = make_config(replicas=2, sections=lists)
    for machine in (gpu_machine(4), gpu_machine(4, "MIG-dc4d,GPU-8932f937,MIG-GPU-ab12/1/0")):
        placement = place(config, machine)
        assert shares(placement, "trainer") == ["GPU-8932f937"]
        assert shares(placement, "rollout") == ["MIG-dc4d", "MIG-GPU-ab12/1/0"]
    assert place(parse_config(json.loads(config.model_dump_json())), gpu_machine(4)) == place(
        config, gpu_machine(4)
    )


@pytest.mark.parametrize(
    ("sections", "machine", "fault"),
    [
        ({}, gpu_machine(1), r"rollout\.devices: auto needs 1 cuda .* none of those in"),
        (
            {"trainer": on(1)},
            npu_machine(shown="2,3"),
            r"trainer\.devices: 1 not in .*: 2, 3 \(ASCEND_RT_VISIBLE_DEVICES is '2,3'\); name some",
        ),
        (
            {"rollout": on(1), "trainer": on(1)},
            npu_machine(),
            r"rollout\.devices: 1 also in trainer\.devices; .*weight_sync\.transport=relay",
        ),
        ({"rollout": on(2, 1, tensor_parallel=2)}, npu_machine(), "2, 1 belong to .*sort them"),
        ({"rollout": on(0, device="cpu")}, npu_machine(), "device is cpu here.*leave the list out"),
        ({"trainer": {"device": "cuda"}}, npu_machine(), r"trainer\.device cuda: .*extra"),
        ({"rollout": on("GPU-ab")}, gpu_machine(shown="0,1"), "ab not in sight; in sight: 0, 1"),
        (
            {"rollout": on("GPU-ab")},
            gpu_machine(),
            r"trainer\.devices: auto cannot tell which numbers GPU-ab .* have; name UUIDs here",
        ),
        (
            {"rollout": on("GPU-ab"), "trainer": on(0)},
            gpu_machine(),
            r"names numbers and trainer\.devices UUIDs, .* name both in the same way",
        ),
        (
            {"rollout": on("MIG-a", "MIG-b", tensor_parallel=2), "trainer": on("GPU-ab")},
            gpu_machine(),
            r"rollout\.devices: MIG-a, MIG-b belong to one process, .*tensor_parallel=1",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line_with_its_key_and_a_remedy(
    sections: dict[str, Any], machine: Machine, fault: str
) -> None:
    with pytest.raises(InputError, match=fault) as caught:
        place(make_config(sections=sections), machine)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sections", "fault"),
    [
        ({"rollout": on(0, 1, 2, tensor_parallel=2)}, r"rollout\.devices names 3 .* 2"),
        ({"trainer": on(0, 1)}, r"trainer\.devices names 2 devices; 1 are needed"),
        ({"rollout": on("ab")}, r"rollout\.devices: must be auto or a list .*UUIDs"),
        ({"rollout": on(1, 1)}, r"rollout\.devices: must be auto or a list .*each once"),
        ({"rollout": {"devices": "0,1"}}, r"rollout\.devices: must be auto or a list"),
        ({"rollout": on(-1)}, r"rollout\.devices: must be auto or a list"),
    ],
)
def test_lists_of_the_wrong_length_or_form_are_refused_as_they_are_read(
    sections: dict[str, Any], fault: str
) -> None:
    with pytest.raises(InputError, match=fault) as caught:
        make_config(sections=sections)
    assert "\n" not in str(caught.value)


def test_both_pools_may_share_a_device_where_no_collective_is_to_join_them() -> None:
    relay = {"weight_sync": {"transport": "relay"}}
    config = make_config(sections={"rollout": on(0), "trainer": on(0), **relay})
    placement = place(config, gpu_machine(1))
    assert shares(placement, "trainer") == shares(placement, "rollout") == ["0"]


@pytest.mark.parametrize(
    ("package", "variable", "faults"),
    [
        ("vllm_ascend", None, ["rollout.device npu: vllm_ascend"]),
        ("mindspeed", None, ["trainer.device npu: mindspeed"]),
        ("scipy", None, ["trainer.device npu: scipy", "rollout.device npu: scipy"]),
        ("triton", "ATB_HOME_PATH", ["trainer.device npu: t", "rollout.device npu: t", "rollout"]),
    ],
)
def test_each_part_is_told_what_it_misses_on_an_npu(
    package: str | None, variable: str | None, faults: list[str]
) -> None:
    variables = {name: value for name, value in NPU_VARIABLES.items() if name != variable}
    machine = Machine(variables, NPU_PACKAGES - {package}, 8, 0)
    named = {"trainer": {"device": "npu"}, "rollout": {"device": "npu"}}
    with pytest.raises(InputError) as caught:
        place(make_config(sections=named), machine)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(faults)
    assert all(line.startswith(fault) for line, fault in zip(lines, faults, strict=True)), lines
    assert all("install" in line and "; " in line for line in lines)


def test_an_engine_that_is_not_vllm_needs_nothing_of_vllms() -> None:
    machine = Machine({"ASCEND_HOME_PATH": "/c"}, NPU_PACKAGES - {"vllm_ascend"}, 8, 0)
    place(make_config(sections={"rollout": {"engine": "transformers"}}), machine)


def test_a_service_alone_is_not_asked_what_only_another_needs() -> None:
    """The extras can be installed in environments of their own."""
    machine = Machine(NPU_VARIABLES, NPU_PACKAGES - {"mindspeed"}, 8, 0)
    placement = place(make_config(ranks=3), machine, checked=("rollout",))
    assert shares(placement, "rollout") == ["3"]
    config = make_config(sections=APART)
    assert shares(place(config, machine, checked=("rollout",)), "rollout") == ["0"]


def read_nine_npus(variables: Mapping[str, str]) -> Machine:
    return Machine(dict(variables) | NPU_VARIABLES, NPU_PACKAGES, 9, 0)


def test_a_service_takes_the_same_share_alone_and_from_a_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    config = make_config(replicas=2, rollout_tp=3, ranks=2)
    placement = place(config, read_nine_npus({}))
    services = run_services(fill_endpoints(config), Path("f"), placement)
    seen = {s.name: s.environment.get("ASCEND_RT_VISIBLE_DEVICES") for s in services}
    assert seen == {
        **dict.fromkeys(["reward", "weight-sync", "controller"]),
        **{"trainer-0": "0", "trainer-1": "1", "rollout-0": "2,3,4", "rollout-1": "5,6,7"},
    }
    for kind, index in (("trainer", 0), ("trainer", 1), ("rollout", 0), ("rollout", 1)):
        alone = placed_environment(config, kind, index, {}, read_nine_npus)
        assert alone["ASCEND_RT_VISIBLE_DEVICES"] == seen[f"{kind}-{index}"]


def test_a_service_that_is_placed_is_not_placed_again() -> None:
    """`serve` starts itself anew when the environment differs, and then sees its share only."""
    config = make_config(replicas=2, rollout_tp=3)
    once = placed_environment(config, "rollout", 1, {"PATH": "/bin"}, read_nine_npus)
    assert once["ASCEND_RT_VISIBLE_DEVICES"] == "4,5,6"
    assert placed_environment(config, "rollout", 1, once, read_nine_npus) == once
    # What is left of another process's environment does not count.
    with pytest.raises(InputError, match="auto needs"):
        placed_environment(config, "rollout", 0, once, read_nine_npus)


def test_a_replica_that_wants_more_than_its_host_has_is_refused_in_a_line() -> None:
    """Somebody else has placed it: a pool of his may have the devices of several hosts."""
    config = make_config(rollout_tp=16, ranks=2)
    fault = r"^rollout.tensor_parallel: .* needs 16 npu devices .* has 9;.* rollout.hosts [^\n]*$"
    with pytest.raises(InputError, match=fault):
        placed_environment(config, "rollout", 0, {PLACED: "rollout-0"}, read_nine_npus)
    rank = {PLACED: "trainer-1", "ASCEND_RT_VISIBLE_DEVICES": "8"}  # one of many is enough for it
    assert placed_environment(config, "trainer", 1, rank, read_nine_npus)[PLACED] == "trainer-1"


def test_a_host_of_a_replica_needs_its_share_of_the_devices() -> None:
    """Whoever starts a part of it there shows it the devices; nobody shares this host's out."""
    config = make_config(rollout_tp=16, sections={"rollout": {"hosts": 2}})
    for kind in ("rollout", "follower"):
        environment = placed_environment(config, kind, 0, {"PATH": "/bin"}, read_nine_npus)
        assert "ASCEND_RT_VISIBLE_DEVICES" not in environment
    larger = make_config(rollout_tp=32, sections={"rollout": {"hosts": 2}})
    with pytest.raises(InputError, match="needs 16 npu devices of its host, which has 9"):
        placed_environment(larger, "follower", 1, {}, read_nine_npus)


def test_a_host_without_the_other_pools_kind_of_device_serves_its_own() -> None:
    kinds = {"trainer": {"device": "npu"}, "rollout": {"device": "cpu"}}
    config = make_config(rollout_tp=2, sections=kinds)
    alone = Machine({}, frozenset(), 0, 0)
    for inherited in ({PLACED: "rollout-0"}, dict[str, str]()):
        environment = placed_environment(config, "rollout", 0, inherited, lambda variables: alone)
        assert environment[PLACED] == "rollout-0"
    with pytest.raises(InputError, match=r"trainer\.device npu: no device"):
        placed_environment(config, "trainer", 0, {PLACED: "trainer-0"}, lambda variables: alone)


COLOCATED = {"run": {"pools": "colocated", "groups_per_step": 4}}


def test_colocated_pools_see_the_same_devices_in_the_same_order() -> None:
    config = make_config(replicas=2, rollout_tp=2, ranks=4, sections=COLOCATED)
    placement = place(config, npu_machine(shown="2,3,5,7"))
    assert shares(placement, "trainer") == ["2", "3", "5", "7"]
    assert shares(placement, "rollout") == ["2,3", "5,7"]
    alone = place(config, npu_machine(shown="2,3,5,7"), ("rollout",))
    assert shares(alone, "rollout") == ["2,3", "5,7"]


def test_colocated_pools_take_the_devices_that_either_names() -> None:
    for pool in ("trainer", "rollout"):
        config = make_config(4, ranks=4, sections=COLOCATED | {pool: on(4, 6, 1, 0)})
        placement = place(config, gpu_machine(8))
        assert shares(placement, "trainer") == shares(placement, "rollout") == ["4", "6", "1", "0"]


def test_colocated_pools_on_two_kinds_of_devices_are_refused() -> None:
    named = {"trainer": {"device": "cuda"}}  # and that of the rollout is what the machine has
    config = make_config(replicas=1, ranks=1, sections=COLOCATED | named)
    with pytest.raises(InputError, match=r"trainer\.device is cuda here, rollout\.device npu"):
        place(config, npu_machine(2, num_gpus=2))
