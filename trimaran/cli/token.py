"""`trimaran token new`: a client of a manager."""

from __future__ import annotations

import sys

from services.manager.clients_file import make_client


def new(owner: str, role: str, name: str | None) -> int:
    """The token goes to stdout, so that it can be sent to a file; all else to stderr."""
    token, line = make_client(name or owner, owner, role)
    print(
        "add this line to the clients file of `trimaran up` (clients: in its YAML):",
        file=sys.stderr,
    )
    print(f"  {line}", file=sys.stderr)
    print("this is the token; nothing shows it again:", file=sys.stderr)
    print(token)
    return 0
