"""Complete examples. They ship with the package, so `fencepost demo` needs no checkout."""
