"""The controller: runs the training loop, and keeps the record of the run.

    datasets ─▶ loop ─▶ groups (by router) ─▶ scoring (by faulted) ─▶ buffer ─▶ loop ─▶ report

`loop` asks rollout, reward, trainer and weight sync in turn, and writes each stage of each group to
`ledger` first. `run` is one run from start to summary, `resume` how a run goes on from its ledger.
"""
