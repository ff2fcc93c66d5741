"""Foreign programs in processes that may do next to nothing."""
