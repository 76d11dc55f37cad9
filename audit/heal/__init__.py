"""Plans what of an audit's findings can be taken away, and takes it away."""
