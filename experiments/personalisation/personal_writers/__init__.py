"""Unseen writers: accuracy after a few steps on some of their images."""
