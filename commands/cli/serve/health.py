"""`trimaran health`: does the service of this container answer? For health checks of images."""

from __future__ import annotations

import argparse
import asyncio
import ssl
import time
import urllib.error
import urllib.request

from trimaran.errors import InputError, TrimaranError
from trimaran.trust.access import NO_TRUST, TlsFiles, Trust
from trimaran.wire.health_note import HealthNote, noted_file, read_note

SERVICES = {
    "manager": "trimaran.v1.RunService",
    "controller": "trimaran.v1.ControllerService",
    "reward": "trimaran.v1.RewardService",
    "environment": "trimaran.v1.EnvironmentService",
    "weight-sync": "trimaran.v1.WeightSyncService",
    "rollout": "trimaran.v1.RolloutService",
    "follower": "trimaran.v1.FollowerService",
    "trainer": "trimaran.v1.TrainerService",
}
"""What each kind answers for over gRPC."""


def health(options: argparse.Namespace) -> int:
    """Prints one line. Returns 0 where it serves, or starts in good time; else 1."""
    kind, address, timeout = options.kind, options.address, options.timeout
    note = HealthNote(kind, address) if address else _noted(kind)
    try:
        if not note.address:
            return _tell(note, time.time() < note.until, f"{note.doing} until {_clock(note.until)}")
        serves = asyncio.run(_serves(note, kind, timeout))
    except TrimaranError as error:
        return _tell(note, False, str(error))
    if serves:
        return _tell(note, True, f"serves at {note.address}")
    return _tell(note, False, f"does not serve at {note.address} (asked for {timeout:g} s)")


def _noted(kind: str) -> HealthNote:
    """Raises InputError where no service, or another one, has noted itself."""
    path = noted_file()
    note = read_note(path) if path else None
    if note is None:
        raise InputError(
            f"{path or 'TRIMARAN_HEALTH_FILE'}: no service has noted itself here; give KIND and"
            " --address"
        )
    if kind and note.name != kind and not note.name.startswith(f"{kind}-"):
        raise InputError(f"{path}: {note.name} is noted here, and not {kind}")
    return note


async def _serves(note: HealthNote, kind: str, timeout: float) -> bool:
    if "://" in note.address:
        return await asyncio.to_thread(_answers_http, note, timeout)
    from trimaran.wire import rpc

    tls = TlsFiles.from_tree(note.tls) if note.tls else None
    trust = Trust(tls=tls) if tls else NO_TRUST
    return await rpc.is_serving(_reachable(note.address), timeout, trust, SERVICES.get(kind, ""))


def _answers_http(note: HealthNote, timeout: float) -> bool:
    """It is our own process that is asked, under another name than its certificate's: whose that is
    does not matter, and nothing secret is said."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    tls = TlsFiles.from_tree(note.tls) if note.tls else None
    if tls and tls.authorities and tls.certificate:  # who asks has to show a certificate
        context.load_cert_chain(tls.certificate, tls.key)
    scheme, _, rest = note.address.partition("://")
    host, slash, path = rest.partition("/")
    try:
        url = f"{scheme}://{_reachable(host)}{slash}{path}"
        with urllib.request.urlopen(url, timeout=timeout, context=context) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _reachable(address: str) -> str:
    """Who listens on all interfaces is asked on loopback."""
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]") else address


def _tell(note: HealthNote, is_well: bool, words: str) -> int:
    print(f"{note.name or 'service'}: {words}")
    return 0 if is_well else 1


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
