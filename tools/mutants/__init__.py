"""`make mutants`: bugs that the tests must catch.

`list.toml` is a curated list of one-line changes to the source, each of which would break a
guarantee: a missing sync, an unchecked fence, an abort treated as a commit. For each of them the
tool copies the source, makes the change, and runs the tests that are named with it. A change that
no test notices has survived, and the tool fails.

The first run is without a change: tests that fail anyway would catch anything.
"""
