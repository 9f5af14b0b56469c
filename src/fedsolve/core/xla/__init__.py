"""Forms of convolutions and matrix products that XLA runs fast, and how it is asked to compile."""
