"""The other brokers of a cluster.

others.py    how the services of this broker reach them
requests.py  serves what they send
"""
