"""The reward service: a group of completions in, one verdict a completion out.

The road of a group, from the request to the rule:

    server.py     RewardService over gRPC; opens a judge for each term of the configuration
    scoring.py    asks every judge for every completion; the weighted sum is the verdict
    workers/      pool.py: the judge of rules and functions. It hands them to processes that can be
                  killed; worker.py is what runs in such a process
    functions/    loading.py imports the function there and calls it as its signature wants: ours,
                  verl's, TRL's or EasyR1's
    rules/        the built-in functions; rules/__init__.py is their table

Beside the road: plugins/client.py is the judge of plugins over HTTP, and the rest of plugins/ the
server and the conformance kit for them; sandbox/ runs the programs of the rule `code`; terms.py
reads the configuration; allowed.py says what a run may name; outcome.py is what a judge answers.
"""
