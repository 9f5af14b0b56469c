"""Devices and processes of a run, settled before JAX starts."""
