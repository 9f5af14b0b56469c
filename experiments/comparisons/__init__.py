"""Methods ranked on many problems."""
