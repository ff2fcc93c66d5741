"""The environment service: the worlds of episodes, which answer the policy turn by turn.

The road of a turn, from the request to what answers it:

    server.py     EnvironmentService over gRPC
    episodes.py   the episodes that are open, by name: idempotent, bounded, ended when nothing asks
    hosts.py      the table of kinds: who makes the environment of an episode
    environment.py  what an environment is to the service, and who makes one

Kinds: local/ (functions, classes, installed packages), plugins/ (over HTTP), openenv/ and agents/. Tools of several
places, mcp/ among them, meet in tools/. The run's own code plays in processes: workers/ starts and ends them,
one episode at a time in each, and loading/ is what reads the code there: ours, TRL's and verl's.
"""
