"""Ready tasks that are convex."""
