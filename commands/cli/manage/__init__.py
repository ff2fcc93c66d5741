"""Commands that ask a manager, or a run's folder, about runs."""
