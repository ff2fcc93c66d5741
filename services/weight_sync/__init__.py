"""Weight sync: brings each version of the weights from the trainer to the replicas, and checks it.

    trainer: data/snapshot ─▶ data/sender ─▶ transports/ ─▶ data/receiver ─▶ data/shadow ─▶ engine

`control/` is the weight-sync process: who takes which blocks from whom, which version is live, and
what was checked; it holds no tensors. `data/` runs in the trainer and in the replicas.
docs/weight-plane.md begins with a glossary.
"""
