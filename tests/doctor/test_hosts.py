"""Doctors of several hosts, over real connections."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from commands.doctor.examine import digest_of, facts_for_others
from commands.doctor.hosts import Other, ask_host, check_address, check_host, measure_links
from commands.doctor.server import doctor_server
from commands.doctor.system import System
from tests.certificates import Authority
from tests.doctor.made import config
from tests.namespaces import Link, NamespaceHost, far_hosts
from trimaran.errors import InputError
from trimaran.trust.access import Trust

TOKEN = "a-token-of-a-test"
TRUST = Trust(TOKEN)
SECONDS = 120


@asynccontextmanager
async def listening(*trusts: Trust, ahead: float = 0) -> AsyncIterator[list[str]]:
    """Doctors of this host, and their addresses."""
    servers = [doctor_server("127.0.0.1:0", trust, lambda: time.time() + ahead) for trust in trusts]
    for server in servers:
        await server.start()
    try:
        yield [server.address for server in servers]
    finally:
        for server in servers:
            await server.stop()


def ask(
    asked: Trust = TRUST, asking: Trust = TRUST, ahead: float = 0, root: Path | None = None
) -> Other:
    """What one doctor reports to another."""

    async def body() -> Other:
        async with listening(asked, ahead=ahead) as [address]:
            return await ask_host(address, asking, config(root) if root else None)

    return asyncio.run(body())


def test_another_host_reports_what_it_has(tmp_path: Path) -> None:
    other = ask(root=tmp_path)
    assert not other.said
    assert other.versions["trimaran"] and other.model_bytes == 1000
    assert {"memory", "disks", "tools"} <= {one.check for one in other.findings}
    assert not list(check_host(other, other.versions, "model", 1000))


def test_checkouts_that_differ_in_one_file_are_found(tmp_path: Path) -> None:
    """The guides ask for the same code on every host."""
    digests: list[str] = []
    for name, text in (("a", "x = 1\n"), ("b", "x = 1\n"), ("c", "x = 2\n")):
        (tmp_path / name / "trimaran").mkdir(parents=True)
        (tmp_path / name / "trimaran" / "wire.py").write_text(text)
        digests.append(digest_of(tmp_path / name / "trimaran"))
    assert digests[0] == digests[1] != digests[2]
    (tmp_path / "a" / "trimaran" / ".#wire.py").symlink_to("an editor's lock, which leads nowhere")
    assert digest_of(tmp_path / "a" / "trimaran") == digests[0]
    here, _ = facts_for_others(System(os.environ), None)
    other = Other("10.0.0.2:7990", versions=here)
    assert not list(check_host(other, here))
    (finding,) = check_host(other, here | {"trimaran": f"0.1.0 (sources {digests[0]})"})
    assert finding.fault == "different-versions" and digests[0] in finding.what


def test_a_slow_answer_is_no_wrong_clock() -> None:
    """The clock may be wrong by half a round trip, so a slow network accuses no host."""
    other = ask(ahead=0.4)
    assert other.ahead == pytest.approx(0.4, abs=other.within + 0.05)
    assert not list(check_host(other, other.versions))
    assert not list(check_host(replace(other, ahead=1.9, within=1.0), other.versions))
    assert list(check_host(replace(other, ahead=1.9, within=0.1), other.versions))


def test_another_token_is_refused() -> None:
    other = ask(Trust("another-token-of-a-test"))
    assert "not the token" in other.said and not other.findings and not other.versions


async def test_with_tls_only_who_has_a_certificate_is_answered(tmp_path: Path) -> None:
    ours, theirs = [
        Trust(TOKEN, Authority(name).write(tmp_path / name)) for name in ("ours", "theirs")
    ]

    async with listening(ours, ours, ours) as members:
        links = await measure_links(members, ours)
    assert len({(link.start, link.end) for link in links}) == 6  # each pair, both ways
    assert all(not link.said and link.bytes_per_second > 1e6 for link in links), links
    for asked, asking in ((ours, theirs), (ours, TRUST), (TRUST, ours)):
        other = await asyncio.to_thread(ask, asked, asking)
        assert other.said and not other.findings


@pytest.mark.parametrize("trust", [Trust(), TRUST, Trust(is_network_trusted=True)])
def test_beyond_loopback_both_sides_want_token_and_tls_or_a_trusted_network(trust: Trust) -> None:
    with pytest.raises(InputError, match="is beyond loopback"):
        doctor_server("10.0.0.2:7990", trust)
    with pytest.raises(InputError, match="--host 10.0.0.2:7990: is beyond loopback"):
        check_address("10.0.0.2:7990", trust)


# Hosts with addresses of their own.


class Hosts(NamedTuple):
    """10.77.0.1 and 10.77.0.2, and the wire between them."""

    pair: list[NamespaceHost]
    link: Link


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """40 ms apart, each way."""
    with far_hosts("10.77.0", 2) as pair, Link(pair, 40.0) as link:
        yield Hosts(pair, link)


@pytest.fixture
def trusting(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return "--network", "trusted", "--token-file", str(path)


@pytest.fixture
def listener(hosts: Hosts, trusting: tuple[str, ...]) -> Iterator[str]:
    """A doctor that listens on the second host, as its operator starts it."""
    address = "10.77.0.2:7990"
    command = [sys.executable, "-m", "commands.cli", "doctor", "--listen", address, *trusting]
    with subprocess.Popen(
        hosts.pair[1].inside(*command), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout and address in process.stdout.readline()
            yield address
        finally:
            process.kill()


def doctor(
    host: NamespaceHost, *arguments: str, **variables: str
) -> tuple[int, dict[str, list[dict]]]:
    """The exit code and the report of `trimaran doctor --json` on one of the hosts."""
    command = [sys.executable, "-m", "commands.cli", "doctor", *arguments, "--json"]
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
def test_a_far_host_and_one_that_is_gone_are_found(
    hosts: Hosts, listener: str, trusting: tuple[str, ...]
) -> None:
    arguments = ("--host", listener, *trusting)
    _, report = doctor(hosts.pair[0], *arguments)
    assert "links/far" in named(report, 0)
    hosts.link.cut()
    code, report = doctor(hosts.pair[0], *arguments)
    assert code == 1
    assert named(report, 1) == {"hosts/unreachable"} and not report["links"]


@pytest.mark.e2e
def test_the_subnet_is_looked_for_on_the_host(
    hosts: Hosts, listener: str, trusting: tuple[str, ...], tmp_path: Path
) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text(config(tmp_path, network={"subnet": "10.77.0.0/16"}).model_dump_json())
    _, report = doctor(hosts.pair[0], str(run_file), "--host", listener, *trusting)
    # This machine's own /etc/hosts may give its name the address 127.0.1.1.
    about = {name for name in named(report, 0) if name.startswith("addresses/")}
    assert about <= {"addresses/own-name"}
    host, _, port = report["links"][0]["start"].rpartition(":")
    assert host == "10.77.0.1" and int(port) in range(20000, 32768)  # network.ports
    _, report = doctor(hosts.pair[0], str(run_file), "network.subnet=10.78.0.0/16")
    assert "addresses/outside-subnet" in named(report, 0)
    variables = {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "localhost"}
    code, report = doctor(hosts.pair[0], str(run_file), **variables)
    assert code == 1
    assert {"addresses/other-interface", "addresses/localhost"} <= named(report, 0)
