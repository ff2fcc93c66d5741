"""Bringing a version into the host shadows of replicas."""
