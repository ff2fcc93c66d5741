"""A version of the weights on its way from the trainer to the replicas, as trainer, rollout and weight sync see it.

    trainer: sending/snapshot ─▶ sending/sender ─▶ transports/ ─▶ receiving/receiver ─▶ memory/shadow ─▶ engine

`version/` says what a version is, `memory/` where it lies on a host, `delta/` how changed elements travel alone.
docs/weight-plane.md begins with a glossary.
"""
