"""Reading loaded weights back and comparing their digests."""
