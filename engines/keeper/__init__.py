"""What looks at all moves again and again: what may run now, whose time has come, who owes what and who is there.

What one flow needs while it runs belongs to the conductor, what a person asks for to the operations.
"""
