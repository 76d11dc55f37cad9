"""How a disk gets from one host to another: what is sent, over what, how it is written and how the copy is proved.

Nothing here decides whether a disk may be copied.
"""
