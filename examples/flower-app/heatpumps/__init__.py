"""The power of heat pumps, learnt where they are read."""
