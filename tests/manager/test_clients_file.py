"""Who shows which token, and what that client may call."""

import hashlib
import logging

import pytest
import yaml

from commands.cli.main import main
from services.manager.clients_file import Clients, make_client
from services.manager.permissions import LEAST_ROLE, READING
from trimaran.errors import ForbiddenError, InputError, UnauthenticatedError
from trimaran.trust.access import ClientIdentity, Role
from trimaran.v1 import run_pb2

PATH = "/trimaran.v1.RunService/"


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_a_token_leads_to_its_client_and_stands_nowhere(tmp_path):
    anna, line_of_anna = make_client("anna", "team-a", "submitter")
    bob, line_of_bob = make_client("bob", "team-b", "viewer")
    path = write(tmp_path / "clients.yaml", line_of_anna, line_of_bob)
    clients = Clients(path)
    found = clients.identify(PATH + "GetRun", anna)
    assert found == ClientIdentity("anna", "team-a", Role.SUBMITTER)
    assert clients.identify(PATH + "GetRun", bob).name == "bob"
    with pytest.raises(ForbiddenError, match="CreateRun: bob is viewer; it takes submitter"):
        clients.identify(PATH + "CreateRun", bob)
    assert anna not in path.read_text(encoding="utf-8")
    assert hashlib.sha256(anna.encode()).hexdigest() in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("token", ["x", "0" * 64, "a b", "ä", "\ud800"[:0] + "é"])
def test_a_stranger_is_refused_and_its_token_is_not_repeated(tmp_path, token):
    clients = Clients(write(tmp_path / "c.yaml", make_client("anna", "team-a", "operator")[1]))
    with pytest.raises(
        UnauthenticatedError, match="GetRun: this token is not known here"
    ) as raised:
        clients.identify(PATH + "GetRun", token)
    assert token == "x" or token not in str(raised.value)


def test_a_change_counts_without_a_restart_and_a_broken_file_does_not(tmp_path, caplog):
    anna, line = make_client("anna", "team-a", "viewer")
    path = write(tmp_path / "c.yaml", line)
    clients = Clients(path)
    write(path, line.replace("viewer", "operator"))
    assert clients.identify(PATH + "CreateRun", anna).role is Role.OPERATOR
    with caplog.at_level(logging.WARNING):
        write(path, line, "- {name: half")
        assert clients.identify(PATH + "GetRun", anna).role is Role.OPERATOR
        assert clients.identify(PATH + "GetRun", anna).role is Role.OPERATOR
    assert caplog.text.count("cannot be used, so the old one counts") == 1
    path.unlink()
    assert clients.identify(PATH + "GetRun", anna).role is Role.OPERATOR
    write(path, "[]")
    with pytest.raises(UnauthenticatedError):
        clients.identify(PATH + "GetRun", anna)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not YAML"),
        ("", "must be a list"),
        ("- anna", "client 1: must have name, owner, role and sha256"),
        ("- {name: a, owner: b, role: viewer}", "client 1: must have"),
        ("- {name: a, owner: b, role: king, sha256: x}", "client 1: role: must be one of viewer, "),
        ("- {name: a, owner: b, role: [], sha256: x}", "client 1: role"),
        ("- {name: a, owner: b, role: viewer, sha256: x}", "client 1: sha256: 64 hexadecimal"),
        ("- {name: a/b, owner: b, role: viewer, sha256: x}", "client 1: name"),
        ("- {name: a, owner: '', role: viewer, sha256: x}", "client 1: owner"),
        ("- {name: a, owner: 7, role: viewer, sha256: x}", "client 1: owner"),
    ],
)
def test_a_file_that_cannot_be_used_names_the_entry(tmp_path, text, complaint):
    with pytest.raises(InputError, match=complaint):
        Clients(write(tmp_path / "c.yaml", text))


def test_a_file_that_others_may_write_is_refused(tmp_path):
    path = write(tmp_path / "c.yaml", make_client("anna", "team-a", "viewer")[1])
    path.chmod(0o664)
    with pytest.raises(InputError, match="others may write it"):
        Clients(path)


def test_every_method_of_the_service_has_its_least_role():
    """A method that is added is an operator's until somebody decides."""
    methods = run_pb2.DESCRIPTOR.services_by_name["RunService"].methods_by_name
    assert set(methods) == set(LEAST_ROLE) - {"ServerReflectionInfo"}
    assert all(name.startswith(("Get", "List", "Watch", "Server")) for name in READING)


def test_the_command_prints_the_token_once_and_the_line_beside_it(tmp_path, capsys):
    assert main(["token", "new", "--owner", "team-a", "--role", "submitter", "--name", "anna"]) == 0
    out, err = capsys.readouterr()
    token, line = out.strip(), next(part for part in err.splitlines() if "sha256" in part)
    assert token not in err
    assert yaml.safe_load(line)[0]["name"] == "anna"
    clients = Clients(write(tmp_path / "c.yaml", line))
    assert clients.identify(PATH + "CreateRun", token).owner == "team-a"
    assert main(["token", "new", "--owner", "a/b", "--role", "viewer"]) == 2
