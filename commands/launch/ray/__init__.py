"""A run's processes on the nodes of a Ray cluster. Only `cluster.py` imports Ray, and late."""
