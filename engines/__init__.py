"""What runs the graphs: engine, conductor, board, fencing and the keeper."""
