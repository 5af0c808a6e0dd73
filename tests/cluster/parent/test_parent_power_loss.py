"""After a power loss every partition is recovered as after one, however late it is opened.

In fsync mode several brokers recover their partitions themselves. The session of the directory says
whether power was lost since the last recovery, so the parent may record a new session only when all
partitions have been opened. What a power loss left in a log is not what a kill leaves: here it
took the end of a segment, and left the file of the next one.
"""

from __future__ import annotations

from fencepost.base.ids import TopicPartition
from fencepost.broker.storage.session import is_same_session
from tests.broker.node_stage import FOLDER
from tests.cluster.parent.parent_stage import ParentStage
from tests.cluster.parent.test_parent_crashes import PARTITIONS, Clients
from tests.partition.batches import client_batch


def is_trusted(stage: ParentStage) -> bool:
    with stage.disk.quiet():
        return is_same_session(stage.disk, FOLDER)


def torn_by_power_loss() -> Clients:
    """A directory in which every log has lost the end of a segment and kept the next one."""
    clients = Clients(ParentStage(durability="fsync").start())
    clients.create("kept")
    clients.write("kept")
    stage = clients.stage
    for index in range(PARTITIONS):
        (holder,) = stage.holders(TopicPartition("kept", index))
        assert holder.process is not None
        with stage.disk.quiet():
            partition = holder.process.partitions.by_name[TopicPartition("kept", index)]
            while len(partition.log.segments) < 3:  # Never acknowledged.
                partition.append_from_client(client_batch(b"value"), 1_000)
            stage.disk.sync_dir(f"{FOLDER}/kept-{index}")
    stage.die(loses_power=True)
    clients.stage = stage.next_run()
    return clients


def test_recovery_is_recorded_when_all_partitions_are_open() -> None:
    clients = torn_by_power_loss()
    assert not is_trusted(clients.stage)
    clients.stage.start()
    assert is_trusted(clients.stage)
    clients.check()
    clients.stage.die()


def test_a_partition_that_could_not_be_opened_at_first_is_recovered_as_after_a_power_loss() -> None:
    clients = torn_by_power_loss()
    stage = clients.stage
    stage.unreadable.add(TopicPartition("kept", 0))
    stage.start()
    stage.advance(60_000)
    assert not is_trusted(stage)
    stage.unreadable.clear()
    stage.advance(10_000)
    assert is_trusted(stage)
    clients.check()
    stage.die()


def test_a_partition_that_moved_before_it_could_be_opened_is_recovered_in_the_same_way() -> None:
    clients = torn_by_power_loss()
    stage = clients.stage
    # Its leader dies, so that another broker has to open it after it has reported that it serves.
    stage.die_at_start.add(2)
    stage.unreadable |= {TopicPartition("kept", index) for index in range(PARTITIONS)}
    stage.start()
    stage.unreadable -= {TopicPartition("kept", 1), TopicPartition("kept", 2)}
    stage.advance(60_000)
    assert stage.states() == ["serving"] * 3
    assert not is_trusted(stage)
    clients.move("kept", 0, 3)
    stage.advance(10_000)
    assert not is_trusted(stage)
    stage.unreadable.clear()
    stage.advance(10_000)
    assert is_trusted(stage)
    clients.check()
    stage.die()


def test_a_broker_that_dies_before_it_has_opened_its_partitions_leaves_them_to_others() -> None:
    clients = torn_by_power_loss()
    stage = clients.stage
    stage.die_at_start.add(2)
    stage.start()
    stage.advance(10_000)
    assert is_trusted(stage)
    clients.check()
    stage.die()
