"""Fault injection for tests: what a test wants to go wrong, and the dispatcher's part in it.

    faults.py          which request a fault applies to, and when; the faults that are armed
    subjects.py        what a request is about: transactional ids, groups, topics
    failed_replies.py  the reply with an error in the place where each API and version has it
    injection.py       carries out the fault that a request has met

A fault is data, so that a control socket can carry it; only `do`, `hold` and `crash` have functions
of the process that they run in. Without faults the cost is one truth test per request: everything
but `faults.py` is imported with the first fault that is met.

The words for users are in `fencepost.testing.faults`.
"""
