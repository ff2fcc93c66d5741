"""From the ledger to where a run stood, and training recorded batches again."""
