"""Commands that are servers: serve, launch, up, and the health of one."""
