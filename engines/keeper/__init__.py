"""Looks at all moves again and again: which may run, which deadlines have passed, which debts can be paid.

What one flow needs while it runs lies in ``conductor``, what a person asks for in ``operations``.  The words of this
package:

- A move *waits for verification* when it has reached its destination and nobody has confirmed or reverted it yet.
- A move's *policy* says when it is confirmed or reverted without a person: at a deadline, or by the guest's health.
- The keeper *offers* a flow when it puts its job on the board, for conductors to claim.
- A *place* is what a limit of moves that run at a time is set for: a host, a rack, a cell, or everything.
- A move has *begun* when a conductor has claimed its first flow; until then it is *queued*.
"""
