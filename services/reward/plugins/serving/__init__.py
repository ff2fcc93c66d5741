"""A reward function as an HTTP server."""
