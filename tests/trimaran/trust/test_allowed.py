"""Only what the operator allowed can be named by a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.errors import InputError
from trimaran.trust.allowed import (
    ALLOW_VARIABLE,
    Allowed,
    absolute_entry,
    canonical_target,
)

KEY = "reward.rules.x.function"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text("")
    return path


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("my.rewards:score", "my.rewards:score"),
        ("my.rewards:*", "my.rewards:other"),
        ("mine.py:f", "mine.py:f"),
        ("mine.py:*", "{folder}/mine.py:g"),
        ("link.py:f", "mine.py:f"),
    ],
)
def test_functions_that_are_allowed(mine: Path, entry: str, named: str) -> None:
    (mine.parent / "link.py").symlink_to(mine)
    entry, named = (text.replace("{folder}", str(mine.parent)) for text in (entry, named))
    allowed = Allowed.from_entries([entry, entry, "other:f", ""])
    target = allowed.check_function(named, KEY)
    assert target.rpartition(":")[0] in (str(mine), "my.rewards")
    assert target.rpartition(":")[2] == named.rpartition(":")[2]


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ([], "my.rewards:score"),
        (["my.rewards:score"], "my.rewards:other"),
        (["my:*"], "my.rewards:score"),
        (["my.rewards:*"], "my.rewards.inner:score"),
        (["mine.py:f"], "mine.py:g"),
        (["http://mine:80"], "mine:f"),
    ],
)
def test_functions_that_are_not(mine: Path, entries: list[str], named: str) -> None:
    with pytest.raises(InputError, match=f"{KEY}: .*not among what the operator allowed.*--allow "):
        Allowed.from_entries(entries).check_function(named, KEY)


def test_a_link_that_leads_elsewhere_is_not_what_was_allowed(mine: Path) -> None:
    link = mine.parent / "link.py"
    link.symlink_to(mine)
    allowed = Allowed.from_entries(["link.py:f"])
    link.unlink()
    link.write_text("")
    with pytest.raises(InputError, match="not among"):
        allowed.check_function("link.py:f", KEY)


def test_a_file_that_is_missing(mine: Path) -> None:
    (mine.parent / "folder.py").mkdir()
    allowed = Allowed.from_entries(["gone.py:f", "folder.py:f", f"{'long' * 200}.py:f"])
    for name in ("gone", "folder", "long" * 200):
        with pytest.raises(InputError, match=f"{KEY}: .*{name}.py: no such file"):
            allowed.check_function(f"{name}.py:f", KEY)


@pytest.mark.parametrize(
    "entry",
    [
        *("mine.py", "mine.py:", ":f", "mine.py:f()", "my..rewards:f", "my.rewards:f g", "*:*"),
        *("\0.py:f", "rewards.example:8443", "ftp://host", "http://", "http://host:port"),
        *("http://host:0", "http://me:secret@host", "http://[::1", "http://host/path"),
        *("http://host?x=1", "http://a b", "10.0.0.1/8", 'command "x'),
    ],
)
def test_what_is_no_entry(entry: str) -> None:
    with pytest.raises(InputError, match=f"--allow or {ALLOW_VARIABLE}: "):
        Allowed.from_entries([entry])


@given(st.text())
def test_any_text_is_an_entry_or_an_input_error(text: str) -> None:
    try:
        Allowed.from_entries([text])
        Allowed.from_entries([f"http://{text}"])
    except InputError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("entry", "url", "remedy"),
    [
        ("https://host", "http://host", "--allow http://host:80"),
        ("https://host", "https://host.evil.example", "--allow https://host.evil.example:443"),
        ("http://[::1]:80", "http://[::2]:80/x", r"--allow http://\[::2\]:80"),
    ],
)
def test_hosts_that_are_not_allowed(entry: str, url: str, remedy: str) -> None:
    allowed = Allowed.from_entries([entry])
    allowed.check_url(f"{entry}/any/path", "key")
    with pytest.raises(InputError, match=f"key: .*not among the hosts.*{remedy} "):
        allowed.check_url(url, "key")


def test_the_environment_holds_one_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_VARIABLE, "\nmy.rewards:f\r\n  http://Host \n\n10.0.0.0/8")
    allowed = Allowed.from_environment()
    assert allowed.functions == {"my.rewards:f"}
    assert allowed.origins == {("http", "host", 80)}
    assert len(allowed.networks) == 1
    monkeypatch.delenv(ALLOW_VARIABLE)
    assert Allowed.from_environment() == Allowed()


def test_an_entry_holds_in_any_folder(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = absolute_entry("mine.py:f")
    monkeypatch.chdir("/")
    assert canonical_target(entry, KEY) == f"{mine}:f"
    assert absolute_entry("my.rewards:f") == "my.rewards:f"
    with pytest.raises(InputError, match="an entry is one line"):
        absolute_entry("mine.py:f\nos:system")


def test_a_command_is_allowed_word_by_word() -> None:
    allowed = Allowed.from_entries(['command  node "my server.js" --port 1', "command ls"])
    allowed.check_command(("node", "my server.js", "--port", "1"), "environment.mcp[0].command")
    allowed.check_command(["ls"], "environment.mcp[1].command")
    for other in (("node",), ("node", "my", "server.js", "--port", "1"), ("ls", "-l"), ()):
        with pytest.raises(InputError, match=r"environment\.mcp\[0\]\.command: .* not among"):
            allowed.check_command(other, "environment.mcp[0].command")
    with pytest.raises(InputError, match="--allow 'command ls -l /tmp/x:y'"):
        allowed.check_command(("ls", "-l", "/tmp/x:y"), "environment.mcp[0].command")
    assert absolute_entry("command python mine.py:f") == "command python mine.py:f"


def test_a_web_socket_has_the_origin_of_its_handshake() -> None:
    allowed = Allowed.from_entries(["http://127.0.0.1:8000"])
    allowed.check_url("ws://127.0.0.1:8000/ws", "environment.openenv")
    with pytest.raises(InputError, match="--allow https://127.0.0.1:8000"):
        allowed.check_url("wss://127.0.0.1:8000", "environment.openenv")
