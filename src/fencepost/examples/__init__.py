"""Worked pipelines, which ship with the package so that `fencepost demo` needs no checkout."""
