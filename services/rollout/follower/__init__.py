"""A further host of a replica that is larger than one: `server` is its process."""
