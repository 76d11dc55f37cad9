"""Speaks to the services outside Droveway by one small class each: Placement, Neutron, Cinder, Glance and ZooKeeper.

In this package an adapter is what sends requests to one service. A lab has the same classes over embedded services.
"""
