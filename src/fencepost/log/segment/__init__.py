"""One segment of a log: a run of batches in one `.log` file, and the indexes beside it.

segment.py        its states, its append, its file, its index, its damage
reading.py        reads for a fetch: from the batch with an offset on
batches.py        iteration over its batches
walk.py           steps from header to header
index.py          the offset and time index, in memory
index_files.py    the same on the disk: `.index` and `.timeindex`
aborted.py        the `.txnindex`: aborted transactions
survey.py         one pass over the file: checks the batches and builds the index
damage.py         bytes that fail their check: a torn tail, or damage
record_check.py   intact batches whose records cannot be read
wrong_epochs.py   leader epochs that a flipped bit has changed
open_segments.py  the limit on open files, over all logs
"""
