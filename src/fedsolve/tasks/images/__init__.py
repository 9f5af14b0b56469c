"""Ready tasks of pictures."""
