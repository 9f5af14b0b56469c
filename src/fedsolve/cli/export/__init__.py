"""`fedsolve export`: a trained model's weights for other programs, with a model card."""
