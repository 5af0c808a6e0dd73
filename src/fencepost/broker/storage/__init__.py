"""The data directory, and work that blocks on the disk.

A file has one writer. In a cluster (decision 0016) that is:

meta.properties, .lock, .kafka_cleanshutdown, .fencepost-session         the parent
recovery-point-, log-start- and cleaner-offset-checkpoint                the parent
cluster.checkpoint, the metadata log, names of folders                   the parent
broker-<id>.checkpoint                                                   broker <id>
<topic>-<partition>/                                                     its leader
owners                                                                   nobody: it has only locks

directory_lock.py   one process per directory
identity.py         the owner of a directory: Kafka's meta.properties
partition_layout.py what opening, saving and closing partitions needs from a directory
layout.py           the same for a single broker: the files beside the partitions, and the folders
broker_layout.py    the same for one broker of a cluster
parent_layout.py    the same for the parent of a cluster: start, stop, deletions
cluster_checkpoints.py  the checkpoint files of a cluster, read together
session.py          whether writes may have been lost since the last start
folders.py          the folders of partitions: owners, and names of those set aside or deleted
partition_store.py  opens, closes and deletes partitions
descriptors.py      how file descriptors are divided among logs, readers and connections
background.py       syncs of sealed segments and other blocking work, in threads
removal.py          removal of deleted partitions' folders, in a thread
scrub.py            slow reading of all logs, to find damage early
directory_check.py  `fencepost check`: reads a stopped directory and reports problems
repair.py           `fencepost repair`: replaces damaged batches of one partition
"""
