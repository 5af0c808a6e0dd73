"""Forensics with Spark: hanging transactions, slow commits and fencing storms in a log."""
