"""Moves servers from host to host and from cell to cell by durable flows."""
