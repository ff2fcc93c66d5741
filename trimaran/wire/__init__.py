"""How processes speak: gRPC and HTTP servers, and our types as messages."""
