"""What of an audit's findings can be taken away, and how it is."""
