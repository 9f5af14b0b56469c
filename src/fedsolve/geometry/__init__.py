"""Geometry: mirror maps, and the scalar root that a step size in a general geometry needs."""

from fedsolve.geometry.mirrors import DiagonalQuadratic, Entropy, Mirror, PNorm, Quadratic

__all__ = ["DiagonalQuadratic", "Entropy", "Mirror", "PNorm", "Quadratic"]
