"""Brokers that answer as a script says."""

from __future__ import annotations

import pytest

from tests.client.scripted import Script


@pytest.fixture
def script() -> Script:
    return Script()
