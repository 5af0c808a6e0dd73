"""Simulated parts of the machine, for deterministic tests.

`disk.py` is a disk that loses unsynced data. Its faults depend only on the test and its seed, so a
failure can be replayed.
"""
