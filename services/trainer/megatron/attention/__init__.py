"""Attention over packed groups, and the positions of their tokens."""
