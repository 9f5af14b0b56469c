"""Simulated time: device profiles (speed, links, availability) and the times of a run's rounds.

Times are computed on the host before training: they do not depend on any value of the model.
"""

from fedsolve.core.fleets.fleet import PROFILES, Fleet, Profile, profile
from fedsolve.core.fleets.timeline import Tasks, Timeline

__all__ = ["PROFILES", "Fleet", "Profile", "Tasks", "Timeline", "profile"]
