"""Models of a few lines."""
