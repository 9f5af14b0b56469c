"""A run on this machine: one method on one task, compiled."""
