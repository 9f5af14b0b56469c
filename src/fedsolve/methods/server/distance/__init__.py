"""Server optimisers without a rate: they estimate how far the solution is from the first model."""
