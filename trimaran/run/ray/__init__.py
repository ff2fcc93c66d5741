"""The nodes of a Ray cluster, and where a run's processes may stand on them. Only `cluster.py` imports Ray."""
