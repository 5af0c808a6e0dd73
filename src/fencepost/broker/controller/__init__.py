"""The controller as a service: `coordinator.metadata` decides, this folder carries it out.

controller.py    decides, writes the metadata log, answers when the effects are done
effects.py       opens, closes and reconfigures the partitions of this node
checkpoint.py    saves the state in place of its history, so that the metadata log stays short
log_check.py     checks the metadata log before a start changes anything
producer_ids.py  assigns producer ids from blocks that the metadata log reserves
"""
