"""Runs the services of a lab in its process: the real Placement, and small ones for ports, volumes and images."""
