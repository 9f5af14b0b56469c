"""Tables, pictures and pages of sweeps."""
