"""The environment service: the worlds of episodes, which answer the policy turn by turn."""
