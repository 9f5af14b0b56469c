"""Tables, plots and pages of sweeps."""
