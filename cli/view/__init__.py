"""Shows things: columns, marks, tables, pictures, the live view, the timeline and the texts of ``explain``.

Nothing here asks for anything or changes anything.
"""
