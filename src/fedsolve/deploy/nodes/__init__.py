"""The nodes of Flower: which client sits where, and messages to and from them."""
