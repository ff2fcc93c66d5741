"""Servers that an operator writes and a run calls over HTTP: how they are called, served and checked.

Contracts are their services': rewards have theirs in services/reward/plugins, environments in
services/environment/plugins.
"""
