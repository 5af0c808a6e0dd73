"""A database that moves to another server: as docs/outside-outbox.md says, and otherwise.

A new server has another system identifier. pg_upgrade keeps the positions in the log, and dump and
restore begins with low ones.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import psycopg
import pytest

from fencepost.outside.connection import Database
from fencepost.outside.outbox.relay import RelaySettings
from fencepost.outside.outbox.rules import Reason, StartRefused
from fencepost.outside.outbox.setup import init
from fencepost.outside.outbox.status import read_status
from fencepost_examples.postgres import RUNS_AS, binaries
from tests.outside.outbox.stage import OutboxStage
from tests.outside.postgres import PostgresServer

Move = Callable[[PostgresServer, PostgresServer], None]
BUSY = "DROP TABLE IF EXISTS busy; CREATE TABLE busy AS SELECT generate_series(1, 300000)"
FOREIGN = RelaySettings(accept={Reason.FOREIGN})


def dump(dsn: str) -> bytes:
    command = [str(binaries() / "pg_dump"), "--dbname", dsn]
    return subprocess.run(command, capture_output=True, check=True).stdout


def restore(dumped: bytes, dsn: str) -> None:
    command = [str(binaries() / "psql"), "--dbname", dsn, "--quiet"]
    subprocess.run(command, input=dumped, check=True, capture_output=True)


def dump_and_restore(old: PostgresServer, new: PostgresServer) -> None:
    restore(dump(old.dsn()), new.dsn())


def upgrade(old: PostgresServer, new: PostgresServer) -> None:
    """To the same version: what happens to identifier, log and slots does not depend on it."""
    for server in (old, new):
        assert server.stop() == 0
    command = [binaries() / "pg_upgrade", "--username", "postgres", "--no-sync"]
    command += ["-b", binaries(), "-B", binaries(), "-d", old.data, "-D", new.data]
    done = subprocess.run(
        [*map(str, command), "-s", str(new.folder)],
        cwd=new.folder,
        user=RUNS_AS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    new.start()


@pytest.fixture(scope="module")
def foreign() -> Iterator[PostgresServer]:
    """An empty server, stopped: the files are copied for each test."""
    with PostgresServer(is_foreign=True) as server:
        server.stop()
        yield server


@pytest.fixture
def servers(foreign: PostgresServer) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    with PostgresServer() as old, PostgresServer() as new:
        new.stop()
        new.restore(foreign.data)
        new.configure({"port": str(new.port)})
        new.start()
        yield old, new


def used(old: PostgresServer, kafka: str) -> OutboxStage:
    """An outbox whose rows stay in its table, and whose slot was told more than the position."""
    outbox = OutboxStage(old.dsn(), kafka)
    outbox.workload()
    outbox.relay()
    outbox.execute(BUSY)
    outbox.relay()
    return outbox


def refusal(outbox: OutboxStage) -> str:
    with pytest.raises(StartRefused) as caught:
        outbox.relay()
    assert caught.value.reasons == {Reason.FOREIGN}
    with outbox.cluster() as cluster:
        assert read_status(Database(outbox.dsn), cluster, outbox.outbox).refusal == str(
            caught.value
        )
    return str(caught.value)


@pytest.mark.parametrize("move", [dump_and_restore, upgrade])
def test_a_copy_that_is_complete_loses_and_repeats_nothing(
    servers: tuple[PostgresServer, PostgresServer], kafka: str, move: Move
) -> None:
    old, new = servers
    outbox = used(old, kafka)
    outbox.drop_slot()
    move(old, new)
    outbox.dsn = new.dsn()
    init(Database(outbox.dsn), outbox.outbox)
    outbox.insert(2)
    assert "nothing is lost and nothing is sent again" in refusal(outbox)
    assert outbox.relay(FOREIGN).rows == 2
    outbox.execute(BUSY)
    assert outbox.relay().rows == 0
    outbox.insert(9)
    outbox.relay()
    outbox.audit()
    # The slot of the new system is compared with what it was told, and with nothing else.
    outbox.advance_slot()
    with pytest.raises(StartRefused, match="--accept new-slot"):
        outbox.relay()


def test_a_copy_from_before_the_last_chunk_has_another_reason(
    servers: tuple[PostgresServer, PostgresServer], kafka: str
) -> None:
    old, new = servers
    outbox = used(old, kafka)
    dump_and_restore(old, new)
    outbox.insert(2)
    outbox.relay()
    outbox.dsn = new.dsn()
    init(Database(outbox.dsn), outbox.outbox)
    for accepted in ({Reason.FOREIGN}, {Reason.RESTORED}):
        with pytest.raises(StartRefused):
            outbox.relay(RelaySettings(accept=accepted))
    outbox.relay(RelaySettings(accept={Reason.FOREIGN, Reason.RESTORED}))
    outbox.insert(2)
    outbox.relay()
    outbox.audit()


def test_a_slot_from_before_the_copy_is_told_apart(
    servers: tuple[PostgresServer, PostgresServer], kafka: str
) -> None:
    """It has the rows of the copy. Their chunk is not copied, as `init` had made the table."""
    old, new = servers
    outbox = used(old, kafka)
    outbox.dsn = new.dsn()
    init(Database(outbox.dsn), outbox.outbox)
    dump_and_restore(old, new)
    assert "it is no full copy" in refusal(outbox)


def test_a_slot_that_was_made_by_hand_after_the_copy_misses_nothing_new(
    servers: tuple[PostgresServer, PostgresServer], kafka: str
) -> None:
    """The row says where the slot of the old system was, which is beyond the new one's log."""
    old, new = servers
    outbox = used(old, kafka)
    outbox.drop_slot()
    dump_and_restore(old, new)
    outbox.dsn = new.dsn()
    outbox.execute(f"SELECT pg_create_logical_replication_slot('{outbox.outbox.slot}', 'pgoutput')")
    outbox.insert(3)
    assert outbox.relay(FOREIGN).rows == 3
    outbox.insert(2)
    outbox.relay()
    outbox.audit()


def test_a_database_that_returns_to_its_server_needs_a_decision_each_time(
    servers: tuple[PostgresServer, PostgresServer], kafka: str
) -> None:
    old, new = servers
    outbox = used(old, kafka)
    first = outbox.dsn
    for dsn in (new.dsn(), first):
        outbox.drop_slot()
        here = {old.dsn(): old, new.dsn(): new}
        before, outbox.dsn = outbox.dsn, dsn
        outbox.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        outbox.execute(f"DROP PUBLICATION IF EXISTS {outbox.outbox.publication}")
        dump_and_restore(here[before], here[dsn])
        init(Database(dsn), outbox.outbox)
        outbox.insert(2)
        refusal(outbox)
        outbox.relay(FOREIGN)
        outbox.insert(2)
        outbox.relay()
        outbox.audit()


@pytest.mark.parametrize("by_init", [True, False])
def test_a_copy_from_before_the_first_start_misses_nothing_silently(
    servers: tuple[PostgresServer, PostgresServer], kafka: str, by_init: bool
) -> None:
    """The row has the LSN of a slot in another log, which is far ahead of this one.

    The rows of the copy are in the log of the old server only.
    """
    old, new = servers
    with psycopg.connect(old.dsn(), autocommit=True) as connection:
        for statement in BUSY.split("; ") * 2:
            connection.execute(statement.encode())
    outbox = OutboxStage(old.dsn(), kafka)
    outbox.insert(1)
    dump_and_restore(old, new)
    outbox.dsn = new.dsn()
    if by_init:
        init(Database(outbox.dsn), outbox.outbox)
    else:
        outbox.execute(
            f"SELECT pg_create_logical_replication_slot('{outbox.outbox.slot}', 'pgoutput')"
        )
    outbox.insert(3)
    with pytest.raises(StartRefused, match="--accept new-publication"):
        outbox.relay()
    outbox.relay(RelaySettings(accept={Reason.NEW_PUBLICATION}))
    del outbox.written[:1]
    outbox.insert(2)
    outbox.relay()
    outbox.audit()


def test_a_copy_on_the_same_server_has_other_reasons(dsn: str, kafka: str) -> None:
    outbox = OutboxStage(dsn, kafka)
    outbox.workload()
    outbox.relay()
    outbox.drop_slot()
    dumped = dump(dsn)
    outbox.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    outbox.execute(f"DROP PUBLICATION {outbox.outbox.publication}")
    restore(dumped, dsn)
    init(Database(dsn), outbox.outbox)
    outbox.insert(2)
    both = {Reason.NEW_SLOT, Reason.NEW_PUBLICATION}
    with pytest.raises(StartRefused) as caught:
        outbox.relay()
    assert caught.value.reasons == both
    assert outbox.relay(RelaySettings(accept=both)).rows == 2
    outbox.audit()
