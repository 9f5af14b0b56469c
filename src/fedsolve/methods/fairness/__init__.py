"""Methods that favour the clients with large losses: weights that follow from losses, minimax by mirror ascent."""
