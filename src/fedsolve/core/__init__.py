"""What everything else is written in: the interface of methods, pytrees, checks, errors, messages as bytes."""

__version__ = "0.2.0"
