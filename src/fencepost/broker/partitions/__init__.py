"""The partitions that this process leads.

    partition_host.py    the data directory and the open partitions of a process
    local_partitions.py  their registry, their syncs, and the long polls that wait for them
    leadership.py        which partition a request is for, or why it cannot be served here
    batch_opener.py      the records of large batches, checked in slices

The log of a partition and its rules are in `fencepost.log` and `fencepost.partition`.
"""
