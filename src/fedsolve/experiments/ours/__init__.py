"""Studies of our own: of none of the five papers."""
