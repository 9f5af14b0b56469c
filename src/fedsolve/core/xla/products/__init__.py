"""Products of matrices in traced programs, computed otherwise: in bfloat16, and as sums."""
