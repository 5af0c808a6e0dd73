"""Who decides: transactions, consumer groups, and the metadata of the cluster.

Each of the three is a state that is a function of a log, and the same two steps: `decide` looks at
the state and an event and says what is to be written and answered; `apply` takes what was written
into the state, live and on recovery alike. Nothing here reads a clock, throws randomness, opens a
file or waits: the time is an argument, and so is everything that an event needs. The shells that
append, wait and answer are in `broker`.
"""
