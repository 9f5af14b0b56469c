"""The server of a deployment: asks clients, checks what they send, updates."""
