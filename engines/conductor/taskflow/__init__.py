"""What is made of TaskFlow's own parts: the engine, its persistence on the journal, and the board of moves."""
