"""`python -m fencepost` is the same as the command `fencepost`."""

from __future__ import annotations

from fencepost.cli.main import main

if __name__ == "__main__":
    main()
