"""A user who may not read the transaction log."""

from __future__ import annotations

import pytest

from fencepost.forensics.history import facts
from fencepost.forensics.history.transaction_log import NoTransactionLogError


@pytest.fixture
def no_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NoTransactionLogError("This user may not read __transaction_state: grant READ.")

    monkeypatch.setattr(facts, "read_history", refuse)
