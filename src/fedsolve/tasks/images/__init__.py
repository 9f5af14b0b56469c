"""Ready tasks of images."""
