"""Ask something of an installation with the code of an earlier release: its configuration is the first argument.

What is asked comes as JSON: a list of pairs, a verb and a server's name.  It writes the moves' ids as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from droveway.conf import settings
from droveway.engines import asking
from droveway.engines.installation import Installation
from droveway.engines.submit import Wish, submit
from droveway.lab import operations

ENDS = {"confirm": asking.confirm, "revert": asking.revert}


def main() -> None:
    site = Installation(settings.load_deployment(Path(sys.argv[1])))
    moves = {}
    for verb, server in json.load(sys.stdin):
        if verb == "delete":
            moves[server] = operations.ask_to_delete(site, server)
        elif verb in ENDS:
            moves[server] = asking.ask(site, asking.move_of_server(site, server).id, ENDS[verb]).id
        else:
            flavor = "large" if verb == "resize" else None
            moves[server] = submit(site, Wish(server=server, flavor=flavor, confirm_seconds=86400)).id
    json.dump(moves, sys.stdout)


main()
