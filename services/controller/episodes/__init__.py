"""Episodes: a conversation of the policy with an environment, which becomes one completion of a group."""
