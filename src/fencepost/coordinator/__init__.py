"""The coordinators: transactions, consumer groups, and the metadata of the cluster.

Each of the three keeps a state that is a function of a log, in two steps. `decide` maps the state
and an event to the records to write and the reply. `apply` folds written records into the state,
live and on recovery alike. Nothing here reads a clock, draws random numbers, opens a file or waits:
time and every other input is an argument. The shells that append, wait and answer are in `broker`.

`acl` has the rules that the metadata log carries, and the decision who may do what.
"""
