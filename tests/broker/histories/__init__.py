"""Random histories of a whole broker; see `world.py`."""
