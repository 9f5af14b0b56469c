"""Sums of client messages that nobody sees singly: masks between clients, opened by a committee of them.

The files follow the protocol. Set-up: `identity` (keys, one-time pre-keys), `roster` (everybody's keys, the committee).
A round: `attempt` (what all is bound to), `graph` (who shares a mask with whom), `masked_reply` (what a client sends),
`unmasking` (how the committee opens the sum). `node_secrets` is a client, `secure_server` the server.
"""
