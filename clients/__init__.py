"""One small class for each service outside: Placement, network, volume, image, ZooKeeper."""
