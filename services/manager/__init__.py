"""The manager: accepts runs, queues and places them, and answers for them as long as they are kept."""
