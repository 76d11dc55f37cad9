"""Holds what conductor and worker exchange through ZooKeeper.

Nothing here sends or carries out anything.
"""
