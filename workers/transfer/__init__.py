"""Moves the bytes of disks from one host to another, and proves that the copy is what was sent.

The source reads the disks and serves them over a socket; the destination fetches them chunk by chunk, writes them, and
reads back what it wrote.  Whether a disk may be copied at all is decided elsewhere (`droveway.workers.actions.copies`).

A disk's *medium* is what the file really holds: it is read past the page cache.  An *extent* is a piece of a sparse
file that holds data.
"""
