"""FedDuA's step against exhaustive searches: Theorems 3.2, 3.3 and 4.1 of Takakura et al. 2025."""
