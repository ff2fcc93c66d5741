"""`trimaran reward`: serve and check plugins."""
