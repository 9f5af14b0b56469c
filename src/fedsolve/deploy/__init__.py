"""The second engine: a round as messages between a server and clients on other machines (Flower)."""
