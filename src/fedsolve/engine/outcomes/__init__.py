"""What runs return where there are several: seeds, methods; and how all results are read from their folders."""
