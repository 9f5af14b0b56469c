"""What privacy costs."""
