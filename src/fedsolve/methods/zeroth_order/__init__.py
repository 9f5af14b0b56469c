"""Methods that ask clients for losses alone, and send a few scalars along directions that everybody can draw."""
