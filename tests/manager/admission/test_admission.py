"""Submitted specifications are data: what they may name, and what they may cost."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from services.manager.admission.admission import admit
from services.manager.admission.costs import costs_of
from services.manager.admission.specification import MAX_CONFIG_BYTES, MAX_NODES
from services.manager.settings import AllowSection as Allow
from services.manager.settings import CredentialsSection
from services.manager.settings import LimitsSection as Limits
from trimaran.config import NetworkSection
from trimaran.errors import ForbiddenError, InputError, LimitError, TrimaranError

NO_LIMITS = Limits()


@pytest.fixture
def roots(tmp_path):
    """models/tiny/, data/train.jsonl, data/validation.jsonl, and secret/ beside them."""
    for folder in ("models/tiny", "data/inner", "secret"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "models/tiny/config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "models/tiny/model.safetensors").write_bytes(b"\0" * 1024)
    for name in ("data/train.jsonl", "data/validation.jsonl", "secret/key"):
        (tmp_path / name).write_text("{}\n", encoding="utf-8")
    return tmp_path.resolve()


def allow(roots, **more):
    return Allow(models=(roots / "models",), data=(roots / "data",), **more)


def specify(**sections):
    tree = {
        "model": {"path": "tiny"},
        "data": {"train": "train.jsonl"},
        "reward": {"rules": {"gsm8k": 1.0}},
    } | sections
    return yaml.safe_dump(tree)


def admitted(roots, text, *overrides, limits=NO_LIMITS, **more: Any):
    return admit(text, overrides, allow(roots, **more), limits)[0]


def test_paths_are_below_the_roots_and_handed_on_resolved(roots):
    config = admitted(roots, specify())
    assert config.model.path == roots / "models/tiny"
    assert config.data.files == (roots / "data/train.jsonl",)
    full = specify(
        data={"train": str(roots / "data/train.jsonl"), "validation": "validation.jsonl"}
    )
    assert admitted(roots, full).data.validation[0].path == roots / "data/validation.jsonl"
    by_override = admitted(roots, specify(), "data.train=validation.jsonl", "run.seed=7")
    assert by_override.data.files == (roots / "data/validation.jsonl",)
    assert by_override.run.seed == 7


def test_sinks_are_those_that_the_operator_allows(roots):
    text = specify(metrics={"sinks": ["wandb"]})
    with pytest.raises(ForbiddenError, match=r"metrics\.sinks: wandb .* \(none\)"):
        admitted(roots, text)
    assert admitted(roots, text, sinks=("wandb",)).metrics.sinks == ("wandb",)


@pytest.mark.parametrize("project", ["../../theirs", "a/b", "", ".hidden", "a\nb", "x" * 129])
def test_a_project_at_a_sink_is_a_plain_name(roots, project):
    with pytest.raises(InputError, match=r"metrics\.project"):
        admitted(roots, specify(metrics={"project": project}))
    assert admitted(roots, specify(metrics={"project": "My runs_1.2-b"})).metrics.project


def test_what_cannot_be_in_the_operators_network_is_refused(roots):
    text, network = specify(run={"pools": "colocated"}), NetworkSection(subnet="10.0.0.0/8")
    assert admit(text, (), allow(roots), NO_LIMITS)[0].is_colocated
    with pytest.raises(InputError, match=r"colocated, and network\.subnet is for several hosts"):
        admit(text, (), allow(roots), NO_LIMITS, network)
    alone = admit(specify(), (), allow(roots), NO_LIMITS, network)[0]
    assert alone.network == network


OUTSIDE = (
    ("{roots}/secret/key", ForbiddenError),
    ("/", ForbiddenError),
    ("../secret/key", ForbiddenError),
    ("{roots}/models/tiny/../../secret", ForbiddenError),
    ("{roots}/data-of-others/x", ForbiddenError),
    ("no-such", InputError),
    ("~/x", InputError),
    ("$HOME", InputError),
    ("a\0b", TrimaranError),
)


@pytest.mark.parametrize(
    ("key", "named", "error"),
    [
        *(("data.train", *case) for case in OUTSIDE),
        *((key, *OUTSIDE[0]) for key in ("model.path", "data.validation", "trainer.load")),
    ],
)
def test_other_paths_are_refused_by_the_name_of_their_key(roots, key, named, error):
    with pytest.raises(error, match=f"^{key}: "):
        admitted(roots, specify(), f"{key}={yaml.safe_dump(named.format(roots=roots)).strip()}")


def test_a_path_outside_is_refused_alike_whether_it_is_there_or_not(roots):
    """Nobody learns which files there are."""
    texts = set()
    for name in ("key", "no-key"):
        with pytest.raises(ForbiddenError) as raised:
            admitted(roots, specify(), f"data.train={roots}/secret/{name}")
        texts.add(str(raised.value).replace(name, "NAME"))
    assert len(texts) == 1


@pytest.mark.parametrize("target", ["secret/key", "data/train.jsonl"])
def test_symbolic_links_are_refused(roots, target):
    (roots / "data/link.jsonl").symlink_to(roots / target)
    (roots / "data/folder").symlink_to((roots / target).parent)
    for named in ("link.jsonl", f"folder/{Path(target).name}", str(roots / "data/link.jsonl")):
        with pytest.raises(ForbiddenError, match=r"data\.train: .* is a symbolic link"):
            admitted(roots, specify(), f"data.train={named}")


def test_a_root_may_itself_be_reached_by_a_link_of_the_operator(roots):
    (roots / "alias").symlink_to(roots / "data")
    allowed = Allow(models=(roots / "models",), data=(roots / "alias",))
    for named in ("train.jsonl", f"{roots}/alias/train.jsonl", f"{roots}/data/train.jsonl"):
        config, _ = admit(specify(data={"train": named}), (), allowed, NO_LIMITS)
        assert config.data.files == (roots / "data/train.jsonl",)


def test_a_link_inside_a_model_stays_below_the_roots(roots):
    """As in a Hugging Face cache, whose snapshots are links to blobs."""
    (roots / "models/blob").write_bytes(b"0")
    (roots / "models/tiny/inside").symlink_to("../blob")
    admitted(roots, specify())
    (roots / "models/tiny/outside").symlink_to(roots / "secret/key")
    with pytest.raises(ForbiddenError, match=r"model\.path: .*outside: leads out of the roots"):
        admitted(roots, specify())


def test_what_hangs_a_reader_or_may_be_exchanged_is_refused(roots):
    os.mkfifo(roots / "data/pipe.jsonl")
    with pytest.raises(InputError, match=r"data\.train: pipe\.jsonl: is not a file"):
        admitted(roots, specify(data={"train": "pipe.jsonl"}))
    (roots / "data/inner/x.jsonl").write_text("{}", encoding="utf-8")
    (roots / "data/inner").chmod(0o777)
    with pytest.raises(ForbiddenError, match=r"data\.train: .* anybody may exchange"):
        admitted(roots, specify(data={"train": "inner/x.jsonl"}))


@pytest.mark.parametrize(
    "override",
    [
        "run.folder=/root",
        "endpoints.reward=127.0.0.1:7001",
        "rollout.devices=[0]",
        "trainer.devices=[0]",
    ],
)
def test_the_managers_own_keys_are_refused(roots, override):
    key = override.partition("=")[0]
    section = "endpoints" if key.startswith("endpoints") else key
    for allowed in (allow(roots), None):
        with pytest.raises(ForbiddenError, match=f"{section}: the manager chooses it"):
            admit(specify(), [override], allowed, NO_LIMITS)


def test_without_roots_paths_are_absolute(roots):
    tree = {"path": str(roots / "models/tiny")}
    data = {"train": str(roots / "data/train.jsonl")}
    assert admit(specify(model=tree, data=data), (), None, NO_LIMITS)[0].model.path.is_dir()
    with pytest.raises(InputError, match=r"data\.train: .*absolute path"):
        admit(specify(model=tree), (), None, NO_LIMITS)


def reward(**rule):
    return {"rules": {"judge": rule}}


@pytest.mark.parametrize(
    ("named", "place", "fits"),
    [
        ("{roots}/payloads/a", "{roots}/payloads", True),
        ("{roots}/payloads/../secret", "{roots}/payloads", False),
        ("{roots}/payloads-2", "{roots}/payloads", False),
        ("s3://bucket/runs/a", "s3://bucket/runs", True),
        ("s3://bucket/runs", "s3://bucket/runs/", False),
        ("s3://bucket/runs-2", "s3://bucket/runs", False),
        ("s3://bucket", "{roots}/payloads", False),
        ("{roots}/payloads", "s3://bucket", False),
    ],
)
def test_payloads_lie_where_the_operator_allows(roots, named, place, fits):
    text = specify(run={"payloads": named.format(roots=roots)})
    with pytest.raises(ForbiddenError, match=r"run\.payloads: .*\(none\)"):
        admitted(roots, text)
    places = (place.format(roots=roots),)
    if fits:
        assert admitted(roots, text, payloads=places).run.payloads
    else:
        with pytest.raises(ForbiddenError, match=r"run\.payloads"):
            admitted(roots, text, payloads=places)


def test_a_model_that_other_hosts_have_lies_below_the_roots_and_comes_from_an_allowed_source(roots):
    path = str(roots / "models" / "elsewhere")
    text = specify(model={"path": path, "source": "s3://models/a"})
    with pytest.raises(ForbiddenError, match=r"model\.source: .*\(none\); leave it out"):
        admitted(roots, text)
    sources: Any = {"sources": ("s3://models",)}
    assert str(admitted(roots, text, **sources).model.path) == path
    with pytest.raises(InputError, match=r"model\.path: .*no such file or folder"):
        admitted(roots, specify(model={"path": path}), **sources)
    others = (("/etc/x", ForbiddenError), ("x", InputError), (f"{path}/../x", ForbiddenError))
    for other, error in others:
        with pytest.raises(error, match=r"model\.path"):
            admitted(roots, specify(model={"path": other, "source": "s3://models/a"}), **sources)
    with pytest.raises(LimitError, match=r"model\.path: .* is not on the manager's host"):
        admitted(roots, text, limits=Limits(disk_gib=10), **sources)


def test_functions_are_those_of_the_operator(roots):
    file = roots / "rewards.py"
    file.write_text("def score(): ...", encoding="utf-8")
    entries: dict[str, Any] = {"functions": ("my.rewards:score", f"{file}:*")}
    for named in ("my.rewards:score", f"{file}:score"):
        config = admitted(roots, specify(reward=reward(function=named)), **entries)
        assert config.reward.rules["judge"].function == named
    (roots / "link.py").symlink_to(file)
    for named in (
        "my.rewards:other",
        "os:system",
        f"{roots}/x.py:score",
        f"{roots}/link.py:score",
        f"{file}:*",
        f"{roots}/data/../rewards.py:score",
        "rewards.py:score",
    ):
        with pytest.raises(ForbiddenError, match=r"reward\.rules\.judge\.function: "):
            admitted(roots, specify(reward=reward(function=named)), **entries)


def test_environments_name_code_hosts_and_commands_of_the_operator_alone(roots):
    file = roots / "tools.py"
    file.write_text("def add(): ...", encoding="utf-8")
    entries: dict[str, Any] = {
        "functions": (f"{file}:*",),
        "plugin_hosts": ("https://worlds.example",),
        "commands": ("command python -m agent", "network npx server"),
    }
    allowed = [
        {"tools": [f"{file}:add"], "mcp": [{"command": ["npx", "server"]}]},
        {"factory": f"{file}:World"},
        {"plugin": {"url": "https://worlds.example/v1"}},
        {"openenv": "wss://worlds.example"},
        {"agent": {"command": ["python", "-m", "agent"]}},
        {"agent": {"command": ["npx", "server"], "network": True}},
        {"python": True},
    ]
    for environment in allowed:
        assert admitted(roots, specify(environment=environment), **entries).environment
    refused = [
        ({"tools": [f"{file}:add", "os:system"]}, r"environment\.tools\[1\]: os:system"),
        ({"factory": "os:system"}, r"environment\.factory: os:system"),
        ({"plugin": {"url": "https://other.example"}}, r"environment\.plugin\.url: "),
        (
            {"plugin": {"url": "https://worlds.example", "token_variable": "TRIMARAN_X"}},
            r"environment\.plugin\.token_variable: the operator does not give TRIMARAN_X",
        ),
        ({"openenv": "ws://worlds.example"}, r"environment\.openenv: "),
        ({"agent": {"command": ["python", "-m", "other"]}}, r"environment\.agent\.command: "),
        (
            {"agent": {"command": ["python", "-m", "agent"], "network": True}},
            r"environment\.agent\.command: .* with a network",
        ),
        ({"mcp": [{"command": ["sh"]}]}, r"environment\.mcp\[0\]\.command: sh"),
        ({"mcp": [{"url": "http://other"}]}, r"environment\.mcp\[0\]\.url: "),
    ]
    for environment, told in refused:
        with pytest.raises(ForbiddenError, match=told):
            admitted(roots, specify(environment=environment), **entries)


def test_rules_may_be_narrowed(roots):
    with pytest.raises(ForbiddenError, match=r"reward\.rules\.gsm8k: the rule gsm8k is not"):
        admitted(roots, specify(), rules=("boxed",))
    with pytest.raises(ForbiddenError, match=r"reward\.rules\.judge: the rule code is not allowed"):
        admitted(roots, specify(reward=reward(rule="code")), rules=("gsm8k",))
    admitted(roots, specify(reward=reward(rule="gsm8k")), rules=("gsm8k",))


def test_a_plugin_is_at_a_host_of_the_operator_and_gets_that_hosts_token(roots):
    host = "https://rewards.example:8443"
    credentials = {
        host: CredentialsSection(token_variable="TRIMARAN_REWARDS", ca_file=Path("/etc/ca.pem"))
    }
    hosts: dict[str, Any] = {
        "plugin_hosts": (host, "https://other.example"),
        "plugin_credentials": credentials,
    }

    def check(**plugin):
        return admitted(roots, specify(reward=reward(plugin=plugin)), **hosts)

    check(url=f"{host}/a", token_variable="TRIMARAN_REWARDS", ca_file="/etc/ca.pem")
    check(url="https://other.example/x")
    key = r"^reward\.rules\.judge\.plugin\."
    for url in ("https://rewards.example/a", "http://rewards.example:8443", "http://10.0.0.1:80"):
        with pytest.raises(ForbiddenError, match=key + "url: .* not at a host"):
            check(url=url)
    for url, variable in ((host, "TRIMARAN_OTHER"), ("https://other.example", "TRIMARAN_REWARDS")):
        with pytest.raises(ForbiddenError, match=key + "token_variable: the operator does not"):
            check(url=url, token_variable=variable)
    with pytest.raises(ForbiddenError, match=key + "ca_file"):
        check(url=host, ca_file="/etc/shadow")


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (Limits(steps=19), r"run\.steps: 20 is more than this owner's steps, 19"),
        (Limits(replicas=1), r"rollout\.max_replicas: 2 is more than this owner's replicas, 1"),
        (Limits(devices=2), r"rollout\.replicas x .*: 3 is more than this owner's devices, 2"),
        (Limits(tokens=20 * 8 * 8 * 1024 - 1), r"run\.steps x run\.groups_per_step x .*: "),
        (Limits(disk_gib=1e-6), r"run\.keep_checkpoints \+ run\.keep_best\) x .*"),
        (Limits(host_memory_gib=2), r"rollout\.max_replicas x rollout\.kv_cache_gib \+ .*"),
    ],
)
def test_costs_are_bounded_and_the_field_is_named(roots, limits, field):
    text = specify(rollout={"replicas": 2}, run={"payload_quota_gib": 0.5})
    with pytest.raises(LimitError, match=field):
        admitted(roots, text, limits=limits)
    tokens = 20 * 8 * 8 * 1024
    enough = Limits(devices=3, replicas=2, steps=20, tokens=tokens, disk_gib=1)
    admitted(roots, text, limits=enough)


def test_epochs_pass_no_limit_of_steps(roots):
    text = specify(run={"epochs": 1000})
    assert admitted(roots, text).run.epochs == 1000
    for limits in (Limits(steps=10), Limits(tokens=10**6)):
        with pytest.raises(LimitError, match=r"run\.epochs: .*; give run\.steps"):
            admitted(roots, text, limits=limits)


def test_payloads_on_a_bounded_disk_need_a_quota(roots):
    with pytest.raises(LimitError, match=r"run\.payload_quota_gib: missing; this owner's disk_gib"):
        admitted(roots, specify(), limits=Limits(disk_gib=10))
    with pytest.raises(LimitError, match=r"payload_quota_gib .*: 12"):
        text = specify(run={"payload_quota_gib": 12})
        admitted(roots, text, limits=Limits(disk_gib=10))
    own = (str(roots / "payloads"), f"file://{roots}/payloads")
    more: Any = {"limits": Limits(disk_gib=10), "payloads": (*own, "s3://b")}
    for folder in own:
        text = specify(run={"payloads": folder})
        with pytest.raises(LimitError, match=r"run\.payload_quota_gib: missing"):
            admitted(roots, text, **more)
        admitted(roots, text, "run.payload_quota_gib=1", **more)
    text = specify(run={"payloads": "s3://b/x", "keep_payloads": "all"})
    with pytest.raises(LimitError, match=r"run\.payload_quota_gib: missing"):
        admitted(roots, text, **more)
    admitted(roots, text, "run.payload_quota_gib=1", **more)


def test_a_path_that_the_system_refuses_is_an_error_of_its_key(roots):
    """Not a failure of the manager."""
    for name in ("x" * 300, f"{roots}/data/{'x' * 300}"):
        with pytest.raises(InputError, match=r"^data\.train: "):
            admitted(roots, specify(data={"train": name}))
    with pytest.raises(InputError, match=r"^data\.train: .*\(File name too long"):
        text = specify(model={"path": str(roots / "models/tiny")}, data={"train": "/" + "x" * 5000})
        admit(text, (), None, NO_LIMITS)


@pytest.mark.parametrize(
    ("algorithm", "answers_a_step"),
    [
        ({}, 8 * 8),
        ({"dynamic_sampling": {}}, 8 * (1 + 3) * 8),
        ({"dynamic_sampling": {"max_replaced": 0.1}}, (8 + 1) * 8),
        ({"recipe": "dapo"}, 8 * (1 + 10) * 8),
        ({"advantage": "remax"}, 8 * (8 + 1)),
        ({"dynamic_sampling": {"max_replaced": 1000}}, 8 * 1001 * 8),
    ],
)
def test_groups_that_are_replaced_and_greedy_answers_count(roots, algorithm, answers_a_step):
    text, tokens = specify(algorithm=algorithm), 20 * answers_a_step * 1024
    assert costs_of(admitted(roots, text, limits=Limits(tokens=tokens))).tokens == tokens
    with pytest.raises(LimitError, match=r"max_replaced, greedy answers \(remax\) and validation"):
        admitted(roots, text, limits=Limits(tokens=tokens - 1))


def test_episodes_count_as_long_as_they_may_be(roots):
    text = specify(environment={"python": True, "max_tokens": 3000})
    assert costs_of(admitted(roots, text)).tokens == 20 * 8 * 8 * 3000
    with pytest.raises(LimitError, match="group_size x environment.max_tokens, and"):
        admitted(roots, text, limits=Limits(tokens=20 * 8 * 8 * 3000 - 1))
    environment = {"python": True, "max_tokens": 3000, "max_turns": 4, "history": "template"}
    text = specify(environment=environment)
    assert costs_of(admitted(roots, text)).tokens == 4 * 20 * 8 * 8 * 3000
    with pytest.raises(LimitError, match="environment.max_tokens x environment.max_turns, and"):
        admitted(roots, text, limits=Limits(tokens=4 * 20 * 8 * 8 * 3000 - 1))


def test_validation_counts_among_the_tokens(roots):
    def tokens(**validation):
        data = {"train": "train.jsonl", "validation": "validation.jsonl"}
        return costs_of(admitted(roots, specify(data=data, validation=validation))).tokens

    trained = 20 * 8 * 8
    validated = 1000 * (4 * (4 + 1) + 2 * (16 + 1))
    assert tokens() == (trained + validated) * 1024
    assert tokens(max_tokens=4096) == trained * 1024 + validated * 4096
    assert tokens(only=True) == 1000 * (16 + 1) * 1024


@pytest.mark.parametrize(
    ("text", "error", "complaint"),
    [
        ("", InputError, "config: must hold sections"),
        ("{", InputError, "config: not YAML"),
        ("a: !!python/object/apply:os.system [x]", InputError, "config: not YAML"),
        ("a: &a [1]\nb: *a", InputError, r"config: \*a: no aliases here"),
        ("a: " + "[" * 100 + "]" * 100, LimitError, "config: more than 16 levels"),
        ("a: [" + "1," * MAX_NODES + "]", LimitError, "config: more than"),
        ("#" * (MAX_CONFIG_BYTES + 1), LimitError, "config: 1048577 bytes; at most 1048576"),
        ("a: " + "9" * 5000, InputError, "config: not YAML"),
        ("1: 2", InputError, "config: 1: unknown key"),
        ("modle: {path: x}", InputError, r"config: modle: unknown key; did you mean model\?"),
    ],
)
def test_a_broken_specification_names_the_field(roots, text, error, complaint):
    with pytest.raises(error, match=complaint):
        admitted(roots, text)


@pytest.mark.parametrize(
    ("overrides", "error", "complaint"),
    [
        (["x"], InputError, r"overrides\[0\]: 'x': an override reads key.sub=value"),
        (["run.seed=1", "=2"], InputError, r"overrides\[1\]: '=2'"),
        (["run.seed={"], InputError, r"overrides\[0\]: not YAML"),
        (["run.seed.x=1", "run.seed.y.z=1"], InputError, r"run\.seed"),
        (["a=[&a 1, *a]"], InputError, r"overrides\[0\]: \*a: no aliases here"),
        (["a=" + "x" * 4096], LimitError, r"overrides\[0\]: 4098 bytes; at most 4096"),
        (["run.name=" + "x" * 101], LimitError, r"run\.name: at most 100 bytes"),
        (["run.seed=1"] * 201, LimitError, "overrides: 201; at most 200"),
    ],
)
def test_a_broken_override_names_the_field(roots, overrides, error, complaint):
    with pytest.raises(error, match=complaint):
        admitted(roots, specify(), *overrides)


WORDS = (
    "model data path train reward rules plugin options run steps rollout endpoints url function x"
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*WORDS.split(), 1, None]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(tree=values, overrides=st.lists(st.text(max_size=20), max_size=3))
def test_whatever_comes_it_is_admitted_or_refused_with_a_field(tmp_path_factory, tree, overrides):
    folder = tmp_path_factory.getbasetemp()
    try:
        admit(yaml.dump(tree), overrides, Allow(models=(folder,), data=(folder,)), Limits(steps=1))
    except (InputError, ForbiddenError, LimitError) as error:
        assert all(": " in line for line in str(error).splitlines())


def test_the_operators_network_is_that_of_every_run(roots):
    operators = NetworkSection(subnet="10.0.0.0/8", ports="30000-30999")
    for own in ({}, {"network": {"subnet": "10.0.0.0/8", "ports": "30000-30999"}}):
        config, _ = admit(specify(**own), (), allow(roots), NO_LIMITS, operators)
        assert config.network == operators
    other = {"network": {"subnet": "192.168.0.0/16"}}
    with pytest.raises(ForbiddenError, match=r"network: the operator has said it .*10\.0\.0\.0/8"):
        admit(specify(**other), (), allow(roots), NO_LIMITS, operators)
    assert admit(specify(**other), (), allow(roots), NO_LIMITS)[0].network.subnet


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("rollout", "group_size", 10**9),
        ("rollout", "max_tokens", 10**9),
        ("rollout", "kv_cache_gib", 65000),
        ("reward", "memory_mib", 67_000_000),
    ],
)
def test_what_takes_the_hosts_memory_is_refused_by_its_key(
    roots: Any, section: str, key: str, value: int
) -> None:
    limits = Limits(host_memory_gib=64)
    admitted(roots, specify(), limits=limits)
    with pytest.raises(LimitError) as caught:
        admitted(roots, specify(), f"{section}.{key}={value}", limits=limits)
    first = str(caught.value).partition(" + r")[0]  # the part that takes most
    assert f"{section}.{key}" in first
    assert str(caught.value).endswith("more than this owner's host_memory_gib, 64; lower it")
