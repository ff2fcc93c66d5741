"""A trainer rank's end: the snapshot of its shard, and its senders."""
