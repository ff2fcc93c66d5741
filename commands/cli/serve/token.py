"""`trimaran token new`: a client of a manager."""

from __future__ import annotations

import argparse
import sys

from services.manager.clients_file import make_client


def new(options: argparse.Namespace) -> int:
    """The token goes to stdout, so that it can be sent to a file; all else to stderr."""
    token, line = make_client(options.name or options.owner, options.owner, options.role)
    print(
        "add this line to the clients file of `trimaran up` (clients: in its YAML):",
        file=sys.stderr,
    )
    print(f"  {line}", file=sys.stderr)
    print("this is the token; nothing shows it again:", file=sys.stderr)
    print(token)
    return 0
