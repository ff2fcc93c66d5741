"""A replica's end: a version is gathered in a shadow, proven and kept."""
