"""The reward service's numbers: one module a part, each run in a process of its own."""
