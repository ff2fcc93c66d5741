"""Commands on files: data, import, convert, model."""
