"""`trimaran train`: checks, progress and summary of a run in this terminal."""
