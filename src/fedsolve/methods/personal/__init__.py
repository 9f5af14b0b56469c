"""Personalisation: models that clients adapt, local normalisation, and clusters of clients."""
