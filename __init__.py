"""Droveway carries servers from host to host and from cell to cell, durably."""
