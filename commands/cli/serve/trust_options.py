"""Options by which a command learns what to trust: TLS files, or the network."""

from __future__ import annotations

import argparse
from pathlib import Path

from commands.cli.adding import Add
from trimaran.errors import InputError
from trimaran.trust.access import TlsFiles, Trust


def add_trust_options(add: Add) -> None:
    add("--tls-cert", metavar="FILE", help="certificate chain in PEM; with --tls-key")
    add("--tls-key", metavar="FILE", help="its private key")
    add("--tls-ca", metavar="FILE", help="who signed those of the others")
    add(
        "--tls-name",
        default="",
        metavar="NAME",
        help="what their certificates carry (default: the address that is called)",
    )
    add(
        "--network",
        choices=("loopback", "trusted"),
        default="loopback",
        help="trusted: everybody on it may read what travels, in place of TLS",
    )


def trust_of(options: argparse.Namespace, token: str) -> Trust:
    """Raises InputError for words that do not belong together."""
    return Trust(token, _tls(options), options.network == "trusted")


def _tls(options: argparse.Namespace) -> TlsFiles | None:
    given = [options.tls_cert, options.tls_key, options.tls_ca]
    if not any(given):
        if options.tls_name:
            raise InputError("--tls-name: there is no TLS; give --tls-cert, --tls-key and --tls-ca")
        return None
    if bool(options.tls_cert) != bool(options.tls_key):
        raise InputError("--tls-cert and --tls-key: one is missing; give both")
    certificate, key, authorities = [Path(path).resolve() if path else None for path in given]
    return TlsFiles(certificate, key, authorities, server_name=options.tls_name)
