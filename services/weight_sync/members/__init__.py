"""The replicas that weight sync knows: their states and what is asked of them."""
