"""FedDuAdagrad and FedExP on regressions of 100 to 10,000 dimensions, and what Theorem 4.3 bounds of them."""
