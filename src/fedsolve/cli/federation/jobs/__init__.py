"""`fedsolve federate evaluate` and `fedsolve federate statistics`: runs of an app that train nothing."""
