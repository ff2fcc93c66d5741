"""The checks of one host."""
