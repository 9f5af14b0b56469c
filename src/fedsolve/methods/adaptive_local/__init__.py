"""Adaptive optimisers on the clients, whose second moments the server averages and hands to the next cohort."""
