"""Adapts TaskFlow: its engine, its persistence on the journal, and its board for moves."""
