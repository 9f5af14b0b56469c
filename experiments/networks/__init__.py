"""Neural networks: tasks of several papers."""
