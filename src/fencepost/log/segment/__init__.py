"""One segment of a log: a run of batches in one `.log` file, and the indexes beside it.

segment.py        the segment: its states, its append, its file and index, its reads
index.py          the offset and time index, in memory
aborted.py        the `.txnindex`: aborted transactions
survey.py         one pass over the file: checks the batches and builds the index
damage.py         bytes that fail their check: a torn tail, or damage
open_segments.py  the limit on open files, over all logs
"""
