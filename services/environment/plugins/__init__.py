"""Environments over HTTP: their contract, how they are called, and how one is served."""
