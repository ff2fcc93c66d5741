"""Host memory that several processes map, and a replica's shadow in it."""
