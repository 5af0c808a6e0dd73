"""Ctrl-C in the demo."""

from __future__ import annotations

import os
import signal
import time

import pytest

from fencepost_examples.demo.interrupt import Interrupted, Interruption


def test_a_shielded_block_finishes_before_the_interrupt_is_raised() -> None:
    steps = []
    with Interruption() as interruption, pytest.raises(Interrupted):
        with interruption.shield():
            os.kill(os.getpid(), signal.SIGTERM)
            deadline = time.monotonic() + 5
            while not interruption.is_requested and time.monotonic() < deadline:
                pass
            steps.append("finished")
        steps.append("not reached")
    assert steps == ["finished"]
