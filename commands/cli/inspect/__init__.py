"""Commands that look into a run or a host: ledger, replay, weights, experts, doctor, plan."""
