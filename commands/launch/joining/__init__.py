"""Services that are started elsewhere: they find their run and register."""
