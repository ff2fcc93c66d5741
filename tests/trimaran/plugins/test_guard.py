"""Which addresses may be called."""

from __future__ import annotations

import pytest

from trimaran.plugins.guard import is_local, may_connect
from trimaran.trust.allowed import Allowed

PUBLIC = ["1.1.1.1", "2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1", "2002:101:101::"]
REFUSED = [
    *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "168.63.129.16"),
    *("169.254.169.254", "0.0.0.0", "224.0.0.1", "240.0.0.1", "192.0.2.1", "192.0.0.192"),
    *("::", "::1", "fe80::1%2", "fec0::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
    *("::ffff:10.0.0.1", "::127.0.0.1", "2002:a9fe:a9fe::", "64:ff9b::a9fe:a9fe"),
    *("64:ff9b:1::a00:1", "2001:0:a00:1::"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_called(address: str) -> None:
    assert may_connect(address, "rewards.example", Allowed())


@pytest.mark.parametrize("address", REFUSED)
def test_other_addresses_are_not(address: str) -> None:
    assert not may_connect(address, "rewards.example", Allowed())


@pytest.mark.parametrize(
    ("address", "host", "entries", "may"),
    [
        ("10.1.2.3", "rewards", ["10.0.0.0/8"], True),
        ("::ffff:10.1.2.3", "rewards", ["10.0.0.0/8"], True),
        ("64:ff9b::a01:203", "rewards", ["10.0.0.0/8"], True),
        ("11.1.2.3", "rewards", ["10.0.0.0/8"], True),
        ("192.168.1.1", "rewards", ["10.0.0.0/8"], False),
        ("fd00::1", "rewards", ["fd00::/8"], True),
        ("127.0.0.1", "localhost", [], True),
        ("::1", "localhost", [], True),
        ("10.0.0.1", "localhost", [], False),
        ("1.1.1.1", "localhost", [], False),
        ("127.0.0.1", "localhost.example", [], False),
        ("10.0.0.5", "rewards", ["http://10.0.0.5:80"], False),
    ],
)
def test_what_the_operator_allows(address: str, host: str, entries: list[str], may: bool) -> None:
    assert may_connect(address, host, Allowed.from_entries(entries)) is may


def test_is_local() -> None:
    assert (
        is_local("http://localhost/")
        and is_local("http://[::1]:80")
        and is_local("http://127.0.0.2")
    )
    assert not is_local("http://10.0.0.1") and not is_local("http://localhost.example")
