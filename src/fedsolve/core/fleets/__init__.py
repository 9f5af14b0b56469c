"""The clock of a fleet: how long devices and links take, who is there when, and what a server waits for.

Host arithmetic only: who comes when depends on no value of the model, so it is known before anything is trained.
"""

from fedsolve.core.fleets.fleet import PROFILES, Fleet, Profile, profile
from fedsolve.core.fleets.timeline import Tasks, Timeline

__all__ = ["PROFILES", "Fleet", "Profile", "Tasks", "Timeline", "profile"]
