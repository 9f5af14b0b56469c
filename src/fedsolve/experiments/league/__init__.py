"""Leagues: all methods on all problems by the same budget of tuning."""
