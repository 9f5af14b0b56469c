"""Proximal-point methods with a centre on the server: control variates at the centre, centres of several rounds."""
