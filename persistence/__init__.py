"""Models of the journal database and of Nova's API and cell databases, and the code that reads and writes them."""
