"""Blocks from replica to replica, for members that come late."""
