"""One embedded broker per test module, and unique names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

import fencepost


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker() as running:
        yield running


@pytest.fixture(scope="session")
def new_name() -> Callable[[str], str]:
    """A topic or group name that was not used before."""
    numbers = itertools.count()
    return lambda stem: f"{stem}-{next(numbers)}"
