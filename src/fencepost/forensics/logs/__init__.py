"""Logs with the fate of each record: over the wire, or from files."""
