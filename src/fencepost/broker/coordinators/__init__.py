"""What the two coordinators share: each keeps its state in the log of an internal topic.

by_topic.py    the two coordinators, by the internal topics that are their logs
log_loader.py  the log of a coordinator, read over several turns
checkpoint.py  the state of a coordinator beside its log, so that a load reads less
"""
