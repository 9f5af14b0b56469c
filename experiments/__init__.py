"""The papers' figures and tables as programs, each beside what its run gave: `fedsolve reproduce NAME`."""
