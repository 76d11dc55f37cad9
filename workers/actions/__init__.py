"""What a worker can be asked to do on its host, one subject a module; ``table`` holds every action.

How a command arrives and is answered is not here, nor how bytes go from host to host.
"""
