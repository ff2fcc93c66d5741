"""The manager over HTTP, beside gRPC."""
