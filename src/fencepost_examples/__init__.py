"""`fencepost demo`, and the complete examples: they use the product, and are no part of it.

They ship in the same wheel, so that neither needs a checkout. Nothing in `fencepost` uses them but
the command `demo`.
"""
