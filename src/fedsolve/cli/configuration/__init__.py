"""From what was typed, or a file, to the objects that run."""
