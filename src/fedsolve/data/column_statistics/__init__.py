"""Statistics of named columns over all clients, from sums and counts alone; no client's rows are seen.

A statistic takes a few rounds. In each, all clients get the same requests, one for each column, and every number of
their replies is a sum over rows, so that replies can be added up before anybody reads them.
"""
