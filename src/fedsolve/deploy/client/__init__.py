"""The client of a deployment: an order in, its own data and state, a reply out."""
