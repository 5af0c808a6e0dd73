"""The group coordinator as a service: `coordinator.group` decides, this folder carries it out.

coordinator.py  requests find the partition of their group
partition.py    one partition of `__consumer_offsets`: load, append, apply, timers, replies
offsets.py      the topics of a commit on their way to the coordinator and back
slices.py       a commit of very many offsets, one slice per turn of the loop
"""
