"""Muon: steps along the polar factor of a momentum, on clients and on the server, and methods that correct its bias."""
