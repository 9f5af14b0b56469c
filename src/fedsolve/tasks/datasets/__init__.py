"""The public data sets that tasks read: where each comes from, fetching it, and converting its originals."""
