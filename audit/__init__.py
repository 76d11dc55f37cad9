"""Compares all that databases, services and hosts say of servers, and reports what contradicts.

The audit shares no code with the flows, since it judges their work. A *move* is one operation on a server in Droveway's
journal. A *flow* carries out a part of it. A conductor *claims* a move to run its flow. The *fence* is a row beside the
server's rows that holds the number of the claim, so that a conductor which has lost its claim writes nothing there. A
*debt* is a clean-up that a host or a cell still owes, as the journal says. A *standing* is how one server is: at rest,
waiting for confirm or revert, or moving. The *keeper* is the part of a conductor that begins what is due, such as a
move's next flow.
"""

from droveway.audit.findings import Finding, Kind, Report
from droveway.audit.run import audit, judge
from droveway.audit.snapshot import Snapshot
from droveway.audit.sources import Sources, take

__all__ = ["Finding", "Kind", "Report", "Snapshot", "Sources", "audit", "judge", "take"]
