"""What a publication and a catch-up both work with."""

from __future__ import annotations

from dataclasses import dataclass

from services.weight_sync.ledger import VersionLedger
from services.weight_sync.members.offers import Connect
from services.weight_sync.members.pool import ReplicaPool
from services.weight_sync.proving.proving import ReadBackProver
from services.weight_sync.staging.staging import Stager
from trimaran.config import WeightSyncSection


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one run's coordinator, which makes them."""

    config: WeightSyncSection
    ledger: VersionLedger
    pool: ReplicaPool
    stager: Stager
    prover: ReadBackProver
    connect_senders: Connect
