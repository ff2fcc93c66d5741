"""What runs leave behind and say of themselves: folders, logs, events, samples, ledgers."""
