"""Statistics of named columns over all clients, in one round of questions and replies; no client's rows are seen."""
