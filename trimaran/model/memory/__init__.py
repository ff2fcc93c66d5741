"""What a run takes of devices and hosts, estimated in bytes before anything starts.

    model           parameters of a rank's shard, from the facts of a model and a layout
    work            how long prompts and completions are, and what a micro-batch of them holds
    layer           what one layer keeps for its backward pass
    rank            one trainer rank
    stages          how long the stages of a pipeline wait for each other
    replica         one replica
    plan            all of a run, and what does not fit
    table           a plan as lines of text

Pure arithmetic; `tests/e2e/test_memory.py` compares it with what real trainer ranks take.
"""
