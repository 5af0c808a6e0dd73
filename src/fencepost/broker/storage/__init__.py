"""The data directory and the work that blocks on the disk.

directory_lock.py   one process per directory, and whether the last one closed it cleanly
identity.py         whose directory it is: Kafka's meta.properties
layout.py           the files beside the partitions, and the folders of the partitions
descriptors.py      file descriptors: how many there are and who may have how many
background.py       syncs of sealed segments and other blocking work, in threads
removal.py          folders of deleted partitions, removed in a thread
directory_check.py  `fencepost check`: reads a stopped directory and reports what is wrong
"""
