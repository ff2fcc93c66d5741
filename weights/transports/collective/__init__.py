"""Broadcasts over Gloo, NCCL or HCCL in transfer groups."""
