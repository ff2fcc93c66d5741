"""The record of a run: every group's life as hash-chained records, and the payloads that they name."""
