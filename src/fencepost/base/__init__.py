"""What every room uses: ids, limits, error codes, option parsing, and interfaces to the machine.

Only `system.py` does I/O: it implements the clock, disk and randomness. Every other room receives
them as constructor arguments (`seams.py`), so that a simulation can run the same code in virtual
time, on a disk that loses unsynced data.
"""
