"""The journal database's revisions, one module each."""
