"""The rounds of a federation whose server sees sums of messages alone: the protocol of `deploy/secure` on Flower."""
