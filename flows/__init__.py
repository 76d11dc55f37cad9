"""One module per operation: the graph of its steps, read top to bottom."""
