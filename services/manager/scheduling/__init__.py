"""Which run starts, grows or gives devices back. Pools and needs."""
