"""The runs of a call: of several methods, each with one seed or several; as many at once as a CPU has cores."""
