"""The controller as a service: `coordinator.metadata` decides, this folder carries it out.

controller.py  decides, writes the metadata log, answers when the effects are done
checkpoint.py  saves the state in place of its history, so that the metadata log stays short
log_check.py   checks the metadata log before a start changes anything
"""
