"""What PyTorch itself computes, to compare a translation with."""
