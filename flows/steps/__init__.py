"""The steps that graphs are made of, by subject."""
