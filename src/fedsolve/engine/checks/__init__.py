"""What is checked before anything is compiled."""
