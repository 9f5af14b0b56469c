"""Many settings and seeds of a method as one program."""
