"""The five services of a run. Each is a package with a `server.py`, and runs as processes of its own.

    controller ─▶ rollout ─▶ reward ─▶ controller's buffer ─▶ trainer ─▶ weight_sync ─▶ rollout

docs/architecture.md follows one training step through them. Services import `trimaran` and `weights`,
and never each other.
"""
