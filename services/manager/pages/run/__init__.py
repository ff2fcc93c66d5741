"""One run: its curves, configuration, processes, checkpoints, events and logs."""
