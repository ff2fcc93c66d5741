"""One training step: from scored groups to tensors, micro-batches, updates and metrics."""
