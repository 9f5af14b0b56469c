"""Monitoring of a federation: what the server knows of each client, versions, and metrics for Prometheus."""
