"""Holds the actions that a worker carries out on its host: one module for each subject, and ``table`` with all actions.

How a command arrives and is answered is elsewhere (`droveway.workers.run`), and so is how bytes go from host to host
(`droveway.workers.transfer`).
"""
