"""Changed elements only: what turns the blocks of a base into those of the next version."""
