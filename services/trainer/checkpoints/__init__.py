"""Checkpoints: written whole or not at all, read in any layout."""
