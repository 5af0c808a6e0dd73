"""The controller as a service: `coordinator.metadata` decides, this folder carries it out.

controller.py    decides, writes the metadata log, answers when the effects are done
effects.py       what a decision means for the partitions of this node: open, close, reconfigure
checkpoint.py    the state saved in place of its history, so that the metadata log stays short
log_check.py     whether the metadata log is intact; asked before a start changes a byte
producer_ids.py  producer ids, handed out of blocks that the metadata log reserves
"""
