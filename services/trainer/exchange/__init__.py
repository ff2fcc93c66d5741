"""What a rank shares with others: batches, its shard of a version, the versions that were made."""
