"""What a model is worth: metrics over examples, by client, on whole sets, and diagnostics."""
