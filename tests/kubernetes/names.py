"""The cluster's DNS, as far as the chart needs it: addresses of services, as the API server has them.

A name SERVICE.NAMESPACE.svc.cluster.local has the service's address, or those of its pods where it is
headless. Nothing is kept, so that an answer is never old.
"""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import struct
import urllib.error
import urllib.request
from collections.abc import Callable

DOMAIN = "cluster.local"
ADDRESS, IN = 1, 1
"""The type and the class of a record with an IPv4 address."""
UNKNOWN = 3
SECONDS_TO_LIVE = 1
Find = Callable[[str], list[str] | None]


class Api:
    """Example: Api("https://127.0.0.1:6443", token).find("redis.lab.svc.cluster.local")"""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._headers = url, {"Authorization": f"Bearer {token}"}
        self._context = ssl._create_unverified_context()  # its certificate is its own

    def find(self, name: str) -> list[str] | None:
        """The name's addresses; None where there is no such service."""
        service, dot, rest = name.partition(".")
        namespace, _, end = rest.partition(".")
        if not dot or end != f"svc.{DOMAIN}":
            return None
        path = f"api/v1/namespaces/{namespace}"
        found = self._get(f"{path}/services/{service}")
        if found is None:
            return None
        if found["spec"]["clusterIP"] != "None":
            return [found["spec"]["clusterIP"]]
        parts = (self._get(f"{path}/endpoints/{service}") or {}).get("subsets", [])
        return [one["ip"] for part in parts for one in part.get("addresses", [])]

    def _get(self, path: str) -> dict | None:
        request = urllib.request.Request(f"{self._url}/{path}", headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=5, context=self._context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise


def answer(query: bytes, find: Find) -> bytes:
    """To a message with one question. Raises ValueError, IndexError or struct.error where it is none."""
    labels, position = list[str](), 12
    while length := query[position]:
        labels.append(query[position + 1 : position + 1 + length].decode("ascii"))
        position += 1 + length
    end = position + 5
    kind, _ = struct.unpack_from(">HH", query, position + 1)
    addresses = find(".".join(labels).lower())
    wanted = addresses if addresses and kind == ADDRESS else []
    flags = 0x8580 | (UNKNOWN if addresses is None else 0)  # an answer, authoritative
    header = query[:2] + struct.pack(">5H", flags, 1, len(wanted), 0, 0)
    records = b"".join(
        struct.pack(">HHHIH", 0xC00C, ADDRESS, IN, SECONDS_TO_LIVE, 4) + socket.inet_aton(address)
        for address in wanted
    )
    return header + query[12:end] + records


def server(address: str, find: Find) -> socketserver.UDPServer:
    """On UDP port 53 of the address; `serve_forever` serves."""

    class Handler(socketserver.DatagramRequestHandler):
        def handle(self) -> None:
            self.wfile.write(answer(self.rfile.read(), find))

    return socketserver.ThreadingUDPServer((address, 53), Handler)
