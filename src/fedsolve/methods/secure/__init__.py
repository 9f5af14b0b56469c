"""Messages as whole numbers in a ring, so that a server can add up what it cannot read."""

from __future__ import annotations

from fedsolve.methods.secure.fixed_point import Coder
from fedsolve.methods.secure.secure import Secure

__all__ = ["Coder", "Secure"]
