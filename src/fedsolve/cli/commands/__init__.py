"""The commands of `fedsolve`, one file each."""
