"""The group coordinator as a service: `coordinator.group` decides, this folder carries it out.

coordinator.py  finds the partition of a group; requests and replies
partition.py    one partition of `__consumer_offsets`: load, append, apply, timers, replies
offsets.py      the partitions of a commit request and of its reply
slices.py       a commit of very many offsets, one slice per turn of the loop
"""
