"""Images on their way from a dataset's row into a vision-language model; docs/vision.md."""
