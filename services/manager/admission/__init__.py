"""What a submitted specification may name and cost."""
