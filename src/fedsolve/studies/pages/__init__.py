"""The page of a study, and what stands at its top."""
