"""What servers and clients send each other, as records and bytes, and the checks of it."""
