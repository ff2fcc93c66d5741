"""Who may call whom: tokens, roles, TLS files, secrets of the environment, and what an operator allows."""
