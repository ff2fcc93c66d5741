"""Held-out rewards, and which checkpoints they make the best."""
