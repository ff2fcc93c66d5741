"""Weight sync: brings each version of the weights from the trainer to the replicas, and checks it.

This process says who takes which blocks from whom, which version is live, and what was checked; it
holds no tensors. The package `weights` moves them, in the trainer and in the replicas.
docs/weight-plane.md begins with a glossary.
"""
