"""A client app that stays imported between messages: the process behind `fedsolve federate node`.

`node_folder.py` makes a folder whose `flwr-clientapp` stands first on the node's PATH. That is `shim.py`: it hands the
arguments of each message to `worker_process.py`, which runs Flower's own program (`flower_program.py`) in its process.
"""
