"""Simulated time of fleets of devices."""
