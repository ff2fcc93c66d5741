"""What a version is: a layout of blocks, a manifest with a digest of each."""
