"""The options, one module for each group, and the file that holds them: how it is read and who may read it.

What is made of the options (sessions, engines, listeners) is made elsewhere.
"""
