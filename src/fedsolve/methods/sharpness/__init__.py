"""Sharpness-aware methods: clients' gradients at models that are moved to where losses are larger."""
