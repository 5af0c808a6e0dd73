"""`make mutants`: bugs that the tests must catch.

`list.toml` is a curated list of one-line changes to the source, each of which would break a
promise: a sync left out, a fence not checked, an abort taken for a commit. For each of them the
tool copies the source, makes the change, and runs the tests that are named beside it. A change that
no test notices has survived, and the tool fails.

The first of all runs is without a change: tests that fail by themselves would catch anything.
"""
