"""What a run writes while it goes on, and what it is known by: records, checkpoints, identities."""
