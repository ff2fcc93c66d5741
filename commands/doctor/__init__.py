"""What is wrong with a host, before a run finds it out: `trimaran doctor`.

Each module of `checks` reads its facts with a small reader, and judges them with a pure function.
`commands/cli/inspect/doctor.py` is the command; docs/doctor.md is written from the checks.
"""
