"""The weight plane's numbers: one module a part, each run in a process of its own."""
