"""What the trainer costs, in shapes from short answers to long prompts."""
