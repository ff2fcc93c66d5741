"""Routers of mixture-of-experts layers, and the replay of the engine's choices."""
