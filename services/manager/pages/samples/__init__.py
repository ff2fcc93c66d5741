"""What a run's model wrote and what it was worth: samples, episodes, tokens, and a group's life."""
