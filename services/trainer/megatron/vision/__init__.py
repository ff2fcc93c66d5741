"""Images in front of the language model."""
