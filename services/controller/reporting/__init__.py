"""What a run reports while it goes on: log lines, metrics, events."""
