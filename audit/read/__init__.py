"""Reads databases, services and hosts into records; nothing here compares them."""
