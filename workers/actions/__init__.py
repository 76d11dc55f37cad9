"""Holds the actions that a worker carries out on its host, one subject a module; ``table`` lists them all.

How a command arrives and is answered is elsewhere (`droveway.workers.run`), and so is how bytes go from host to host
(`droveway.workers.transfer`).
"""
