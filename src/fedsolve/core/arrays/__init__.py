"""What users give as arrays: NumPy's own, tensors, tables of other packages, lists, and which entries are missing."""
