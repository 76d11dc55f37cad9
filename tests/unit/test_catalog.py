"""What is read of cells and servers, to list them."""

from __future__ import annotations

from pathlib import Path

from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.nova import api, catalog
from droveway.persistence.nova.base import ApiBase


def test_a_server_counts_unless_its_mapping_says_that_it_was_deleted(tmp_path: Path) -> None:
    """Nova wrote nothing there before its release Queens."""
    database = Database(sqlite_url(tmp_path / "api.sqlite"))
    ApiBase.metadata.create_all(database.engine)
    with database.write() as session:
        session.add(api.CellMapping(id=1, uuid="cell", name="cell1"))
        for server, deleted in (("live", False), ("old", None), ("deleted", True)):
            session.add(api.InstanceMapping(instance_uuid=server, cell_id=1, project_id="p", queued_for_delete=deleted))
    assert [cell.servers for cell in catalog.cells_of(database)] == [2]
    database.close()
