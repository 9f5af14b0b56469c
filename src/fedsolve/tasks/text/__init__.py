"""Ready tasks of text."""
