"""Methods whose rounds have a random number of local steps, and whose control variates make up for it."""
