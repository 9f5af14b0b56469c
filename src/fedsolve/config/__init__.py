"""Methods and options by name: the catalogue, configurations as objects, references, papers."""
