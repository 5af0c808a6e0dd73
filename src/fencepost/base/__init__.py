"""The ground floor: ids, limits, error codes and the seams to the world outside.

Nothing here does I/O except `system.py`, which holds the real clock, disk and randomness. Every
other room takes those as constructor arguments (see `seams.py`), so that a simulator can drive the
same code in virtual time on a disk that loses what was not synced.
"""
