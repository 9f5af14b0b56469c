"""Things by name, and how each was made."""
