"""What the records of the metadata log mean for this broker.

effects.py  opens, closes and reconfigures the partitions of this node
"""
