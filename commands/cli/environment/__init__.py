"""`trimaran environment`: serve and check plugins."""
