"""Shows things: columns, marks, tables, pictures, the live view, the timeline and the texts of ``explain``.

The modules read the journal at most, and change nothing.
"""
