"""Methods that are more than a client solver and a server optimiser."""
