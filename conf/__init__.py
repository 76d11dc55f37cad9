"""The options, one module for each group."""
