"""Doctors of several hosts, over real connections."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.certificates import Authority
from tests.doctor.made import config, npu_host
from tests.namespaces import Link, NamespaceHost, far_hosts
from trimaran.cli.doctor import has_collectives
from trimaran.device import BACKENDS
from trimaran.doctor import listener as listening_doctor
from trimaran.doctor.examine import digest_of, facts_for_others
from trimaran.doctor.listener import Listener
from trimaran.doctor.others import check_other
from trimaran.doctor.pairs import ask_host, measure_pairs
from trimaran.doctor.system import System
from trimaran.doctor.wire import dial
from trimaran.errors import InputError, UnauthenticatedError, UnavailableError
from trimaran.network import Interface, join
from trimaran.trust import TlsFiles, Trust

TOKEN = "a-token-of-a-test"
TRUST = Trust(TOKEN)
SECONDS = 120


def listen(trust: Trust = TRUST, ahead: float = 0) -> str:
    """On this host; it ends with the tests' process."""
    listener = Listener("127.0.0.1:0", trust, now=lambda: time.time() + ahead)
    threading.Thread(target=listener.serve, args=(SECONDS,), daemon=True).start()
    return join(listener.host, listener.port)


def test_another_host_tells_what_it_has(tmp_path: Path) -> None:
    other, findings = ask_host(listen(), TRUST, config(tmp_path))
    assert not other.said
    assert other.versions and other.versions["trimaran"]
    assert other.model_bytes == 1000
    assert {"memory", "disks", "tools"} <= {one.check for one in findings}
    assert not list(check_other(other, other.versions, "model", 1000))


def test_checkouts_that_differ_in_one_file_are_told(tmp_path: Path) -> None:
    """The guides ask for the same code on every host."""
    told: list[str] = []
    for name, text in (("a", "x = 1\n"), ("b", "x = 1\n"), ("c", "x = 2\n")):
        (tmp_path / name / "trimaran" / "doctor").mkdir(parents=True)
        (tmp_path / name / "trimaran" / "doctor" / "wire.py").write_text(text)
        told.append(digest_of(tmp_path / name / "trimaran"))
    assert told[0] == told[1] != told[2]
    (tmp_path / "a" / "trimaran" / ".#wire.py").symlink_to(
        "an editor's lock, of nothing that is there"
    )
    assert digest_of(tmp_path / "a" / "trimaran") == told[0]
    (tmp_path / "b" / "trimaran" / "doctor" / "wire.py").rename(
        tmp_path / "b" / "trimaran" / "wire.py"
    )
    assert digest_of(tmp_path / "b" / "trimaran") != told[0]
    other, _ = ask_host(listen(), TRUST, None)
    here = facts_for_others(System(os.environ), None)["versions"]
    assert not list(check_other(other, here))
    (finding,) = check_other(other, here | {"trimaran": f"0.1.0 (sources {told[0]})"})
    assert finding.fault == "different-versions" and told[0] in finding.what


@pytest.mark.parametrize(("ahead", "side"), [(90.0, "90 s ahead"), (-90.0, "90 s behind")])
def test_a_clock_that_is_wrong_is_found(ahead: float, side: str) -> None:
    other, _ = ask_host(listen(ahead=ahead), TRUST, None)
    (finding,) = check_other(other, other.versions or {})
    assert finding.fault == "clock" and side in finding.what


def test_a_slow_answer_is_no_wrong_clock() -> None:
    """Half a round trip is what the clock may be wrong by, so a slow network accuses nobody."""
    other, _ = ask_host(listen(ahead=0.4), TRUST, None)
    assert other.ahead == pytest.approx(0.4, abs=other.within + 0.05)
    assert not list(check_other(other, other.versions or {}))
    assert not list(check_other(replace(other, ahead=1.9, within=1.0), other.versions or {}))
    assert list(check_other(replace(other, ahead=1.9, within=0.1), other.versions or {}))


def test_another_token_is_refused_on_both_sides() -> None:
    address = listen(Trust("another-token-of-a-test"))
    with pytest.raises(UnauthenticatedError, match="another token"):
        dial(address, TRUST)
    other, findings = ask_host(address, TRUST, None)
    assert "another token" in other.said and not findings


def test_who_shows_no_proof_is_answered_nothing() -> None:
    host, _, port = listen().rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        assert b"nonce" in connection.recv(1000)
        connection.sendall(b'{"nonce": "1", "proof": "1"}\n{"ask": "clock"}\n')
        answered = b""
        while read := connection.recv(1000):
            answered += read
    assert json.loads(answered) == {"proof": ""}


def test_the_token_never_travels() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard: list[bytes] = []

        def overhear() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b'{"form": "trimaran-doctor-1", "nonce": "7"}\n')
                heard.append(connection.recv(4096))

        threading.Thread(target=overhear, daemon=True).start()
        with pytest.raises(UnavailableError):
            dial(join("127.0.0.1", server.getsockname()[1]), TRUST)
    assert b"proof" in heard[0] and TOKEN.encode() not in heard[0]


def test_what_listens_there_may_be_no_doctor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b"220 mail.example ESMTP\n")

        threading.Thread(target=speak, daemon=True).start()
        with pytest.raises(UnavailableError, match="no trimaran doctor"):
            dial(join("127.0.0.1", server.getsockname()[1]), TRUST)


def test_each_pair_is_measured_both_ways() -> None:
    links = measure_pairs(dict.fromkeys((listen(), listen(), listen()), ""), TRUST)
    assert len({(link.start, link.end) for link in links}) == 6
    assert all(not link.said and link.bytes_per_second > 1e6 for link in links)


def test_with_tls_nobody_reads_or_asks_who_has_no_certificate(tmp_path: Path) -> None:
    ours, theirs = [
        Trust(TOKEN, Authority(name).write(tmp_path / name)) for name in ("ours", "theirs")
    ]
    members = [listen(ours), listen(ours)]
    links = measure_pairs(dict.fromkeys(members, ""), ours)
    assert all(not link.said and link.bytes_per_second > 1e6 for link in links)
    for stranger in (theirs, TRUST):
        other, findings = ask_host(members[0], stranger, None)
        assert other.said and not findings
    other, _ = ask_host(listen(), ours, None)  # which has no TLS
    assert "SSL" in other.said


@pytest.mark.parametrize("trust", [Trust(), TRUST, Trust(is_network_trusted=True)])
def test_beyond_loopback_both_sides_want_token_and_tls_or_a_trusted_network(trust: Trust) -> None:
    with pytest.raises(InputError, match="is beyond loopback"):
        Listener("10.0.0.2:7990", trust)
    with pytest.raises(InputError, match="--host 10.0.0.2:7990: is beyond loopback"):
        ask_host("10.0.0.2:7990", trust, None)


@pytest.mark.parametrize("device", BACKENDS)
def test_collectives_meet_where_the_network_is_trusted_alone(device: str) -> None:
    """They ask for no token and no certificate."""
    listener = Listener("127.0.0.1:0", TRUST)
    listener.host = "10.0.0.2"
    threading.Thread(target=listener.serve, args=(SECONDS,), daemon=True).start()
    line = dial(join("127.0.0.1", listener.port), TRUST)
    with line, pytest.raises(UnavailableError, match="Gloo, NCCL and HCCL know no TLS"):
        line.ask({"ask": "group", "device": device})


def test_each_pair_of_one_kind_of_device_is_measured_by_its_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a stand-in for the process that measures: it says which options it was given."""
    monkeypatch.setattr(listening_doctor, "PROBE", "tests.doctor.stand_in_probe")
    devices = dict(
        zip((listen() for _ in range(6)), ("npu", "cuda", "npu", "cpu", "", "cuda"), strict=True)
    )
    names = dict(zip(devices, "abcdef", strict=True))
    links = measure_pairs(devices, TRUST)
    groups = {(names[link.start], names[link.end], link.transport) for link in links[30:]}
    assert groups == {("a", "c", "hccl"), ("b", "f", "nccl")}
    assert {link.transport for link in links[:30]} == {"relay"}
    assert [link.bytes_per_second for link in links[30:]] == [3.0, 4.0], links[30:]  # len(device)


@pytest.mark.parametrize(
    ("device", "transports"),
    [("cpu", ["relay", "gloo"]), ("cuda", ["relay"]), ("npu", ["relay"]), ("", ["relay"])],
)
def test_a_host_alone_has_no_group_on_one_accelerator(
    device: str, transports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL and HCCL refuse two ranks on one device."""
    monkeypatch.setattr(listening_doctor, "PROBE", "tests.doctor.stand_in_probe")
    assert [link.transport for link in measure_pairs({listen(): device}, TRUST)] == transports


def test_a_probe_uses_the_interface_of_its_address_unless_the_shell_says_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = (Interface("lo", "127.0.0.1"), Interface("eth1", "10.0.0.2"))
    monkeypatch.setattr(listening_doctor, "read_interfaces", lambda: here)
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("HCCL_SOCKET_IFNAME", "eth0")
    shown = listening_doctor.probe_environment("10.0.0.2")
    assert (shown["NCCL_SOCKET_IFNAME"], shown["HCCL_IF_IP"]) == ("=eth1", "10.0.0.2")
    assert shown["HCCL_SOCKET_IFNAME"] == "eth0"
    assert shown["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"


@pytest.mark.parametrize("error", [PermissionError("no netlink"), InputError("not listed")])
def test_a_probe_does_without_interfaces_where_the_kernel_does_not_tell_them(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise error

    monkeypatch.setattr(listening_doctor, "read_interfaces", refuse)
    shown = listening_doctor.probe_environment("127.0.0.1")
    assert shown == {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


@pytest.mark.e2e
def test_what_a_library_prints_is_not_taken_for_what_a_probe_tells() -> None:
    """As NCCL does by NCCL_DEBUG."""
    code = (
        "from services.weight_sync.transports.link_probe import take_stdout; import os;"
        "told = take_stdout(); os.write(1, b'NCCL INFO'); print('{}', file=told, flush=True)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (ran.stdout, ran.stderr) == ("{}\n", "NCCL INFO")


@pytest.mark.parametrize(
    ("sections", "num_hosts", "expected"),
    [
        (None, 1, False),
        (None, 2, True),
        ({}, 1, False),
        ({}, 2, True),
        ({"weight_sync": {"transport": "collective"}}, 1, True),
        ({"weight_sync": {"transport": "relay"}}, 2, False),
        ({"weight_sync": {"transport": "relay"}, "trainer": {"data_parallel": 2}}, 2, True),
        (
            {"weight_sync": {"transport": "relay"}, "rollout": {"tensor_parallel": 2, "hosts": 2}},
            2,
            True,
        ),
    ],
)
def test_a_run_has_collectives_between_hosts(
    sections: dict | None, num_hosts: int, expected: bool, tmp_path: Path
) -> None:
    run = None if sections is None else config(tmp_path, **sections)
    assert has_collectives(run, num_hosts) is expected


def test_a_host_tells_what_its_collectives_use(tmp_path: Path) -> None:
    run = config(tmp_path, rollout={"device": "npu"}, trainer={"device": "npu"})
    system = npu_host(tmp_path)
    assert facts_for_others(system, run)["device"] == "npu"
    assert facts_for_others(system, None)["device"] == "cpu"  # no device is opened without a run
    shutil.rmtree(tmp_path / "site/torch-0.dist-info")
    assert facts_for_others(system, run)["device"] == ""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("device", "transport"), [("cpu", "gloo"), ("cuda", "nccl"), ("npu", "hccl")]
)
def test_a_pair_is_measured_by_the_library_of_its_devices(device: str, transport: str) -> None:
    """Two processes, made as the weight plane makes its groups. Where the devices are missing each says so."""
    links = measure_pairs({listen(): device, listen(): device}, TRUST)
    (measured,) = [link for link in links if link.transport != "relay"]
    assert measured.transport == transport
    if not measured.said:
        assert measured.bytes_per_second > 1e6 and 0 < measured.seconds < 10
    else:
        assert device != "cpu" and f"device {device}: " in measured.said, measured.said


# Hosts with addresses of their own.


class Hosts(NamedTuple):
    """10.77.0.1 and 10.77.0.2, and the wire between them."""

    pair: list[NamespaceHost]
    link: Link


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """The parameter: the wire's delay one way, in milliseconds."""
    with far_hosts("10.77.0", 2) as pair, Link(pair, request.param) as link:
        yield Hosts(pair, link)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


@contextmanager
def listening(hosts: Hosts, *words: str) -> Iterator[str]:
    """On the second host, as its operator starts it."""
    address = "10.77.0.2:7990"
    command = [sys.executable, "-m", "trimaran.cli", "doctor", "--listen", address]
    with subprocess.Popen(
        hosts.pair[1].inside(*command, *words), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout and address in process.stdout.readline()
            yield address
        finally:
            process.kill()


@pytest.fixture
def trusting(token: Path) -> tuple[str, ...]:
    return "--network", "trusted", "--token-file", str(token)


@pytest.fixture
def listener(hosts: Hosts, trusting: tuple[str, ...]) -> Iterator[str]:
    with listening(hosts, *trusting) as address:
        yield address


def ask(
    host: NamespaceHost, *arguments: str, **variables: str
) -> tuple[int, dict[str, list[dict]]]:
    """The exit code and the report of `trimaran doctor --json` on one of the hosts."""
    command = [sys.executable, "-m", "trimaran.cli", "doctor", *arguments, "--json"]
    asked = subprocess.run(
        host.inside(*command),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, **variables},
    )
    assert asked.stdout, asked.stderr
    return asked.returncode, json.loads(asked.stdout)


def named(report: dict[str, list[dict]], host: int) -> set[str]:
    findings = report["hosts"][host]["findings"]
    return {f"{one['check']}/{one['fault']}" for one in findings if one["severity"] != "fine"}


@pytest.mark.e2e
@pytest.mark.parametrize("hosts", [0.1], indirect=True)
def test_two_hosts_measure_their_link(
    hosts: Hosts, listener: str, trusting: tuple[str, ...]
) -> None:
    _, report = ask(hosts.pair[0], "--host", listener, *trusting)
    ways = {(link["start"].split(":")[0], link["transport"]) for link in report["links"]}
    assert ways == {("10.77.0.1", "relay"), ("10.77.0.2", "relay"), ("10.77.0.1", "gloo")}
    assert not any(link["said"] for link in report["links"]), report["links"]
    assert [host["host"] for host in report["hosts"]][1] == listener
    assert not {name for name in named(report, 0) if name.startswith("links/")}
    assert not {name for name in named(report, 1) if name.startswith("hosts/")}


@pytest.mark.e2e
@pytest.mark.parametrize("hosts", [0.1], indirect=True)
def test_two_hosts_with_certificates_of_their_own(
    hosts: Hosts, token: Path, tmp_path: Path
) -> None:
    authority = Authority("services")
    first, second = [
        words_of(authority.write(tmp_path / f"host-{end}", addresses=[f"10.77.0.{end}"]), token)
        for end in (1, 2)
    ]
    with listening(hosts, *second) as address:
        _, report = ask(hosts.pair[0], "--host", address, *first)
        assert {link["transport"] for link in report["links"]} == {"relay"}  # Gloo knows no TLS
        assert not any(link["said"] for link in report["links"]), report["links"]
        plain = ("--network", "trusted", "--token-file", str(token))
        code, report = ask(hosts.pair[0], "--host", address, *plain)
        assert (code, named(report, 1)) == (1, {"hosts/unreachable"})


def words_of(files: TlsFiles, token: Path) -> tuple[str, ...]:
    given = {"cert": files.certificate, "key": files.key, "ca": files.authorities}
    return "--token-file", str(token), *(f"--tls-{name}={path}" for name, path in given.items())


@pytest.mark.e2e
@pytest.mark.parametrize("hosts", [40.0], indirect=True)
def test_a_far_host_and_one_that_is_gone_are_found(
    hosts: Hosts, listener: str, trusting: tuple[str, ...], tmp_path: Path
) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text(config(tmp_path).model_dump_json())
    relay = (str(run_file), "weight_sync.transport=relay")
    arguments = (*relay, "--host", listener, *trusting)
    _, report = ask(hosts.pair[0], *arguments)
    assert "links/far" in named(report, 0)
    hosts.link.cut()
    code, report = ask(hosts.pair[0], *arguments)
    assert code == 1
    assert named(report, 1) == {"hosts/unreachable"}
    assert report["links"][0]["start"] == report["links"][0]["end"]  # only this host is left


@pytest.mark.e2e
@pytest.mark.parametrize("hosts", [0.1], indirect=True)
def test_the_subnet_is_looked_for_on_the_host(
    hosts: Hosts, listener: str, trusting: tuple[str, ...], tmp_path: Path
) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text(config(tmp_path, network={"subnet": "10.77.0.0/16"}).model_dump_json())
    relay = (str(run_file), "weight_sync.transport=relay")
    _, report = ask(hosts.pair[0], *relay, "--host", listener, *trusting)
    # This machine's own /etc/hosts may give its name the address 127.0.1.1.
    about = {name for name in named(report, 0) if name.startswith("addresses/")}
    assert about <= {"addresses/own-name"}
    host, _, port = report["links"][0]["start"].rpartition(":")
    assert host == "10.77.0.1" and int(port) in range(20000, 32768)  # network.ports
    _, report = ask(hosts.pair[0], str(run_file), "network.subnet=10.78.0.0/16")
    assert "addresses/outside-subnet" in named(report, 0)
    variables = {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "localhost"}
    code, report = ask(hosts.pair[0], str(run_file), **variables)
    assert code == 1
    assert {"addresses/other-interface", "addresses/localhost"} <= named(report, 0)
