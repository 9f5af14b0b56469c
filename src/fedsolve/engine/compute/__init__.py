"""The compiled round: draw a cohort, train its clients, reduce what they send, update."""
