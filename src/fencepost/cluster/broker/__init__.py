"""A broker process of a cluster.

process.py        the process: from its link to its end
broker.py         a broker whose controller is another process
following.py      batches of the metadata log: apply, release, open
standstill.py     notices that the process stood still
controls.py       commands of tests
remote_faults.py  faults that a test in another process arms and counts
owners.py         which broker processes are alive, by the kernel's word
"""
