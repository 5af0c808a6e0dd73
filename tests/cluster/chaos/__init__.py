"""Copiers under faults: several broker processes lose and duplicate nothing.

    python -m tests.cluster.chaos --seed 7 --faults 200        the same as `make chaos`

Theory of operation
-------------------
A feeder writes numbered records to the topic `source`. Copiers (`copier.py`), one process each and
one for every client library, copy them to the topic `copies` in transactions that contain the
offsets of the source. A part of the transactions is aborted on purpose; their records say so. A
reader follows `copies` with read_committed the whole time.

While they work, the faults of a schedule happen (`schedule.py`): it follows from a seed, and says
which part is hit (the coordinator of a copier, the leader of a partition), not which process.
Before each fault the reader must have seen new copies, so every fault meets transactions in
progress.

At the end all records have been copied, and `audit.py` compares what is in the logs with what
exactly-once means. The auditors take plain values, and have tests with planted errors.
"""
