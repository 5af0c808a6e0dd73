"""A PostgreSQL server for the tests of a module, and databases in it for one test each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import psycopg
import pytest

from tests.outside.postgres import PostgresServer

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests of a module. Who kills or configures one starts another."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def dsn(postgres: PostgresServer) -> Iterator[str]:
    """An empty database for one test, without slots when it ends."""
    name = f"test_{next(_NUMBERS)}"
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    yield postgres.dsn(database=name)
    # Another connection: the test may have killed the server.
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
            [name],
        )
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = %s",
            [name],
        )
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
