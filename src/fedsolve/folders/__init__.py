"""Files and folders that survive kills and damage: atomic files, locks, checksums, checkpoints."""
