"""The data directory, and work that blocks on the disk.

A file has one writer. In a cluster (decision 0016) that is:

meta.properties, .lock, .kafka_cleanshutdown, .fencepost-session         the parent
recovery-point-, log-start- and cleaner-offset-checkpoint                the parent
cluster.checkpoint, the metadata log, names of folders                   the parent
broker-<id>.checkpoint                                                   broker <id>
<topic>-<partition>/                                                     its leader
owners                                                                   none: it has only locks

directory_lock.py   one process per directory
identity.py         the owner of a directory: Kafka's meta.properties
layout.py           the files beside the partitions, and the folders, for a single broker
broker_layout.py    the same for one broker of a cluster
parent_layout.py    the same for the parent of a cluster: start, stop, deletions
partition_layout.py what the first two have in common
cluster_checkpoints.py  the checkpoint files of a cluster, read together
session.py          whether writes may have been lost since the last start
folders.py          the folders of partitions: owners, and names of those set aside or deleted
partition_store.py  opens, closes and deletes partitions
descriptors.py      how file descriptors are divided among logs, readers and connections
background.py       syncs of sealed segments and other blocking work, in threads
removal.py          removal of deleted partitions' folders, in a thread
scrub.py            slow reading of all logs, to find damage early
directory_check.py  `fencepost check`: reads a stopped directory and reports problems
known_ends.py       where a log once ended, as the files beside it know
repair.py           `fencepost repair`: replaces damaged batches of one partition

What a step that fails leaves behind, and who may run then (`log/__init__.py` has the same for one
log; `test_failed_steps.py` runs each operation after each failed step of each other one):

    failed            left behind                        the next operation
    ----------------  ---------------------------------  -------------------------------------------
    new folder        no folder, or one without its id   the next append creates or completes it
    deleted topic     its folder under its own name      a new topic of that name sets it aside; the
                                                         next start sets aside what has no topic
    removal of a      a `-delete` folder                 nothing reads it; the next start removes it
    deleted folder
    offsets (three    old offsets, or `.next` files      a later save replaces them; with older
    checkpoints)                                         offsets a start reads more
    DeleteRecords     the old log start                  the client gets an error and repeats it
    checkpoint of a   none, or the old one               the next load reads more of the log; if it
    coordinator                                          cannot be removed, the log is not compacted
    checkpoint of     the log, and perhaps both          the newest one that is complete counts; the
    the metadata      checkpoints                        next change tries again
    repair            some files repaired, the others    a second repair does the rest
                      unchanged
    clean stop        no mark of a clean stop            the next start recovers every log
    move to another   a log that was not closed cleanly  its next leader recovers it from the
    broker                                               recovery point
    take-over         a partition that is not open       LEADER_NOT_AVAILABLE; opening is repeated
    one broker to     `cluster.checkpoint` or Kafka's    a start uses whichever counts; both are
    several, or back  files, each complete               complete before they are switched
"""
