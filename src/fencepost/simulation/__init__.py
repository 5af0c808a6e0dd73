"""Doubles for the world outside, and a deterministic world made of them.

`disk.py` is a disk that forgets what was not synced. Everything here is driven by a seed and by
virtual time, so that a failure is one number that anybody can replay.
"""
