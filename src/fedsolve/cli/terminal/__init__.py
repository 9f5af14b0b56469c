"""What is printed and left in folders: results, progress, errors."""
