"""Studies of personalised models."""
