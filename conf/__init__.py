"""Defines the options, one module for each group, and reads the file that holds them.

What is made of the options (sessions, engines, listeners) is made elsewhere.
"""
