"""The services of a lab: Placement itself, in process, and small local ones for ports, volumes and images."""
