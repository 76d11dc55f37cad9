"""How things are shown: columns, marks, tables, pictures, the live view and the timeline, and the texts of ``explain``.

Nothing here asks for anything or changes anything.
"""
