"""`trimaran plan` as tables: formulas are in `trimaran/model/memory`."""
