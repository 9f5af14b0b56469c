"""Compressed messages: bytes against accuracy, and what compression does to extrapolated server steps."""
