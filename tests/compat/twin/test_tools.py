"""Goal: Kafka's own tools print the same for fencepost as for Apache Kafka.

Method: twin runs (see the package's docstring) in which the steps are calls of tools. What they
print is compared as tables and as JSON, with producer ids counted from the first one and times as
one word.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from fencepost.base.ids import coordinator_partition
from tests.compat.twin.administered import BROKER, DELETE, SET, alter, settings_of
from tests.compat.twin.grouped import SUBSCRIPTION, commit, heartbeat, join, leave, sync
from tests.compat.twin.likeness import moment
from tests.compat.twin.transactional import (
    Producer,
    add_offsets,
    batch,
    commit_offsets,
    end,
    finish,
    list_offsets,
    look,
    look_at_id,
    produce,
    start,
    write,
)
from tests.transactions.protocol import TV1, TV2

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.compat.twin.talk import Talk, Twins

PRODUCER_COLUMNS = {"ProducerId", "producerId", "previousProducerId", "nextProducerId"}
TIME_COLUMNS = {
    "CurrentTransactionStartTimeMs",
    "LastTimestamp",
    "TransactionDurationMs",
    "Duration(min)",
    "transactionLastUpdateTimestampMs",
    "transactionStartTimestampMs",
    "commitTimestamp",
    "currentStateTimestamp",
}


def rows(talk: Talk, table: str) -> list[dict[str, Any]]:
    """A table printed by Kafka's tools, a mapping for each row."""
    lines = [line.split("\t") for line in table.splitlines() if line.strip()]
    head = [word.strip() for word in lines[0]] if lines else []
    return [
        {name: seen(talk, name, cell.strip()) for name, cell in zip(head, line, strict=False)}
        for line in lines[1:]
    ]


def seen(talk: Talk, name: str, value: Any) -> Any:
    """A cell or a field with its producer id, time or identity in the common form.

    Topic ids are left out: our offsets of transactions carry them, Kafka's do not.
    """
    if isinstance(value, dict):
        return {key: seen(talk, key, each) for key, each in value.items() if key != "topicId"}
    if isinstance(value, list):
        return [seen(talk, name, each) for each in value]
    is_number = isinstance(value, int) or re.fullmatch(r"-?\d+", str(value)) is not None
    if name in PRODUCER_COLUMNS and is_number:
        return talk.eyes.producer(int(value))
    if name in TIME_COLUMNS and is_number:
        return "some time" if name.startswith(("TransactionD", "Dur")) else moment(int(value))
    return talk.eyes.of(value)


def in_order(lines: Iterable[str]) -> str:
    """Lines whose order matters; the order of lists is ignored."""
    return "\n".join(lines)


# -- kafka-transactions
# ---------------------------------------------------------------------------------------


def transactions(talk: Talk, step: str, *arguments: str, only: str = "") -> int:
    """Calls kafka-transactions; records rows of this script, and returns how many it printed."""
    result = talk.side.attempt("kafka-transactions", *arguments)
    shown = [
        row for row in rows(talk, result.out) if row.get("TransactionalId", only).startswith(only)
    ]
    talk.note(step, [result.code, *shown])
    if result.code:
        # The message then is about the request, and contains no numbers of a broker.
        talk.note(f"{step}: what it says", result.err.strip().splitlines()[0])
    return len(shown)


def test_transactions_are_listed_described_and_terminated(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("tool", 2)
        ids: dict[str, Producer] = {}
        for name in ("tool-empty", "tool-open", "tool-committed", "tool-aborted"):
            ids[name] = start(talk, name)
        write(talk, ids["tool-open"], TV1, "tool", b"x")
        write(talk, ids["tool-open"], TV1, "tool", b"x", index=1)
        write(talk, ids["tool-committed"], TV2, "tool", b"x")
        finish(talk, ids["tool-committed"], TV2, commit=True)
        write(talk, ids["tool-aborted"], TV1, "tool", b"x")
        finish(talk, ids["tool-aborted"], TV1, commit=False)
        assert transactions(talk, "all", "list", only="tool-") == 4
        transactions(talk, "long ones", "list", "--duration-filter", "1000000", only="tool-")
        pattern = ("--transactional-id-pattern", "tool-.*ed")
        transactions(talk, "by a pattern", "list", *pattern, only="tool-")
        for name in (*ids, "tool-nobody"):
            transactions(talk, f"{name} described", "describe", "--transactional-id", name)
        for index in ("0", "1"):
            place = ("--topic", "tool", "--partition", index)
            transactions(talk, f"producers of {index}", "describe-producers", *place)
        transactions(talk, "hanging", "find-hanging", "--topic", "tool")
        for name in ("tool-open", "tool-empty", "tool-nobody"):
            of = ("--transactionalId", name)
            transactions(talk, f"{name} terminated", "forceTerminateTransaction", *of)
            talk.settle(name)
            look_at_id(talk, "terminated", name)
        look(talk, "in the end", "tool")

    twins.compare(script, at_once=False)


VERIFICATION = "transaction.partition.verification.enable"


def verify_writes(talk: Talk, value: str | None) -> None:
    """Turns the verification of first writes off, or on again."""
    operation = DELETE if value is None else SET
    talk.ask(f"verification {value}", alter(BROKER, "", (VERIFICATION, operation, value)))
    talk.until(
        settings_of(BROKER, "1", [VERIFICATION]),
        lambda reply: reply.results[0].configs[0].value == (value or "true"),
    )


def test_a_hanging_transaction_is_found_and_aborted(twins: Twins) -> None:
    """One that its coordinator does not know, as there were before KIP-890.

    Its batches are an hour old.
    """

    def script(talk: Talk) -> None:
        talk.topic("hanging", 2)
        producer = start(talk, "hanging")
        verify_writes(talk, "false")
        try:
            for version, index in ((10, 0), (11, 1)):
                records = producer.batch(b"lost", sequence=0)
                ask = produce("hanging", records, transactional_id="hanging", index=index)
                talk.ask(f"unverified, v{version}", ask, version)
            offsets = commit_offsets(producer, "hanging", {("hanging", 0): 1})
            talk.ask("unverified offsets", offsets, 4)
        finally:
            verify_writes(talk, None)
        talk.ask("plain behind it", produce("hanging", batch(b"plain")))
        look_at_id(talk, "unknown", "hanging")
        look(talk, "hanging", "hanging")
        assert transactions(talk, "found", "find-hanging", "--topic", "hanging") == 2
        transactions(talk, "found on one", "find-hanging", "--topic", "hanging", "--partition", "1")
        recent = ("--topic", "hanging", "--max-transaction-timeout", "100")
        transactions(talk, "not old enough", "find-hanging", *recent)
        of = ("--topic", "hanging", "--partition", "0", "--start-offset")
        transactions(talk, "not there", "abort", *of, "1")
        transactions(talk, "aborted", "abort", *of, "0")
        look(talk, "aborted", "hanging")
        transactions(talk, "aborted again", "abort", *of, "0")
        of_old = ("--topic", "hanging", "--partition", "1")
        identity = ("--producer-id", str(producer.producer_id), "--producer-epoch", "0")
        coordinator = ("--coordinator-epoch", "0")
        transactions(talk, "as it was before 3.0", "abort", *of_old, *identity, *coordinator)
        look(talk, "both aborted", "hanging", index=1)
        transactions(talk, "none left", "find-hanging", "--topic", "hanging")

    twins.compare(script, at_once=False)


# -- internal topics
# ---------------------------------------------------------------------------

FORMATTERS = "org.apache.kafka.tools.consumer."


def records_of(talk: Talk, topic: str, partition: int, formatter: str) -> list[Any]:
    """The records of one partition of an internal topic, as Kafka's formatter prints them."""
    count = talk.quiet(list_offsets(topic, index=partition, isolation=1)).topics[0].partitions[0]
    arguments = ["--topic", topic, "--partition", str(partition), "--offset", "earliest"]
    arguments += ["--formatter", FORMATTERS + formatter]
    # It ends with the last record, or when none arrives: markers have offsets but are not printed.
    arguments += ["--max-messages", str(count.offset)]
    out = ""
    # On a busy machine the first record may take longer than the first timeout.
    for timeout_ms in ("1500", "15000"):
        patience = ["--timeout-ms", timeout_ms]
        out = out or talk.side.attempt("kafka-console-consumer", *arguments, *patience).out.strip()
    decoder = json.JSONDecoder()
    found = []
    position = 0
    while position < len(out.rstrip()):
        value, position = decoder.raw_decode(out, position)
        found.append(value)
    return found


def test_kafkas_formatter_prints_the_transaction_log(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("logged", 2)
        name = "logged-transactions"
        producer = start(talk, name)
        for protocol, commit_it in ((TV1, True), (TV1, False), (TV2, True), (TV2, False)):
            for index in (0, 1):
                write(talk, producer, protocol, "logged", b"x", index=index)
            finish(talk, producer, protocol, commit=commit_it)
        finish(talk, producer, TV2, commit=False)
        producer = start(talk, name)
        talk.ask("a group joins", add_offsets(producer, "group"))
        finish(talk, producer, TV1, commit=True)
        start(talk, name, timeout_ms=12_345)
        index = coordinator_partition(name, 50)
        printed = records_of(talk, "__transaction_state", index, "TransactionLogMessageFormatter")
        own = [line for line in printed if line["key"]["data"]["transactionalId"] == name]
        assert len(own) > 20
        talk.note("printed", in_order(str(seen(talk, "", line)) for line in own))

    twins.compare(script, at_once=False)


def test_kafkas_formatters_print_the_offsets_log(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("logged-offsets")
        group = "logged-group"
        plain = {("logged-offsets", 0): 3}
        talk.ask("plain", commit(group, plain, metadata="word"))
        member = talk.ask("a member", join(group, instance_id="one")).member_id
        talk.ask("its share", sync(group, member, 1, {member: b"share"}, instance_id="one"))
        talk.ask("it beats", heartbeat(group, member, 1, instance_id="one"))
        producer = start(talk, group)
        for commit_it in (True, False):
            offsets = {("logged-offsets", 0): 5 + commit_it}
            talk.ask("in a transaction", commit_offsets(producer, group, offsets, metadata=None))
            finish(talk, producer, TV2, commit=commit_it)
        talk.ask("it leaves", leave(group, (member, "one")))
        index = coordinator_partition(group, 50)
        for formatter in ("OffsetsMessageFormatter", "GroupMetadataMessageFormatter"):
            printed = records_of(talk, "__consumer_offsets", index, formatter)
            own = [line for line in printed if line["key"]["data"]["group"] == group]
            assert own
            talk.note(formatter, in_order(str(seen(talk, "", line)) for line in own))

    twins.compare(script, at_once=False)


# -- kafka-dump-log
# -------------------------------------------------------------------------------------------


def dump(talk: Talk, files: list[Path], *options: str) -> list[str]:
    """The lines that kafka-dump-log prints, without the folder, positions and checksums."""
    assert files, "there is nothing to dump"
    named = ["--files", ",".join(map(str, files))]
    out = talk.side.tools.check("kafka-dump-log", *named, *options)
    lines = []
    for line in out.splitlines():
        if line.startswith(("Dumping", "Starting", "Log starting", "Snapshot")) or not line.strip():
            continue
        line = re.sub(
            r"([pP]roducerId): (-?\d+)", lambda m: f"{m[1]}: {talk.eyes.producer(int(m[2]))}", line
        )
        line = re.sub(
            r'"((?:previousP|nextP|p)roducerId)":(-?\d+)',
            lambda m: f"{m[1]}: {talk.eyes.producer(int(m[2]))}",
            line,
        )
        line = re.sub(r"\d{13}", lambda m: str(moment(int(m[0]))), line)
        line = re.sub(r"crc: \d+|position: \d+|\"topicId\":\"[^\"]*\"", "", line)
        lines.append(talk.eyes.of(line))
    return lines


def files_of(talk: Talk, partition: str, suffix: str) -> list[Path]:
    return sorted(talk.side.data.rglob(f"{partition}/*.{suffix}"))


def test_kafka_dump_log_reads_a_partition_with_transactions(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        topic = "dumped"
        talk.topic(topic, 1, {"segment.bytes": "1048576"})
        first, second = start(talk, "dumped-1"), start(talk, "dumped-2")
        write(talk, first, TV1, topic, b"a", b"b")
        write(talk, second, TV2, topic, b"c")
        finish(talk, first, TV1, commit=False)
        talk.ask("plain", produce(topic, batch(b"plain")))
        finish(talk, second, TV2, commit=True)
        write(talk, second, TV2, topic, b"d", b"e")
        for number in range(2):
            # Two of these fill a segment: the next one begins with a snapshot of the producers.
            talk.ask(f"wide {number}", produce(topic, batch(b"x" * 600_000)))
        finish(talk, second, TV2, commit=False)
        partition = f"{topic}-0"
        logs = files_of(talk, partition, "log")
        talk.note("segments", [file.name for file in logs])
        dumped = [line for line in dump(talk, logs, "--deep-iteration") if "| offset" not in line]
        talk.note("log", in_order(dumped))
        snapshots = files_of(talk, partition, "snapshot")
        talk.note("snapshots", [file.name for file in snapshots])
        talk.note("snapshot", dump(talk, snapshots))
        indexes = [file for file in files_of(talk, partition, "txnindex") if file.stat().st_size]
        talk.note("txnindexes", [file.name for file in indexes])
        talk.note("txnindex", dump(talk, indexes))

    twins.compare(script, at_once=False)


def test_kafka_dump_log_reads_the_coordinators_logs(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        topic = name = "dumped-coordinators"
        talk.topic(topic)
        producer = start(talk, name)
        for protocol, commit_it in ((TV1, True), (TV2, False)):
            write(talk, producer, protocol, topic, b"x")
            if protocol is TV1:
                talk.ask("a group joins", add_offsets(producer, name))
            ask = commit_offsets(producer, name, {(topic, 0): 7}, metadata="word")
            talk.ask("offsets", ask, protocol.txn_offset_commit)
            finish(talk, producer, protocol, commit=commit_it)
        index = coordinator_partition(name, 50)
        for internal, decoder in (
            ("__transaction_state", "--transaction-log-decoder"),
            ("__consumer_offsets", "--offsets-decoder"),
        ):
            lines = dump(talk, files_of(talk, f"{internal}-{index}", "log"), decoder)
            own = [line for line in lines if name in line or "endTxnMarker" in line]
            assert len(own) >= 4
            # Others share the partition: contents are compared, not offsets.
            words = [
                re.sub(
                    r'([oO]ffset|keySize|valueSize|sequence): -?\d+ ?|,("topicId":"[^"]*")?(?=\})',
                    "",
                    line,
                )
                for line in own
            ]
            talk.note(internal, in_order(words))

    twins.compare(script, at_once=False)


# -- kafka-consumer-groups
# ------------------------------------------------------------------------------------


def groups(talk: Talk, step: str, *arguments: str) -> None:
    """Calls kafka-consumer-groups; records exit code and output, with spaces collapsed."""
    result = talk.side.attempt("kafka-consumer-groups", *arguments)
    words = [" ".join(line.split()) for line in result.out.splitlines() if line.strip()]
    # Lines of a list come in any order; the head of a table stays first.
    address = talk.side.bootstrap_servers
    talk.note(step, [result.code, *(line.replace(address, "HOST:PORT") for line in words)])


def test_groups_are_listed_described_reset_and_deleted(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        topic, group = "tool-read", "tool-group"
        talk.topic(topic, 2)
        for _ in range(3):
            talk.ask("a record", produce(topic, batch(b"a", b"b")))
        talk.ask("committed", commit(group, {(topic, 0): 2}, metadata="word"))
        of_group = ("--group", group)
        for view in ((), ("--members",), ("--members", "--verbose"), ("--state",), ("--offsets",)):
            groups(talk, f"empty: {view}", "--describe", *of_group, *view)
        subscription = SUBSCRIPTION.replace(b"\x00\x01t", bytes([0, len(topic)]) + topic.encode())
        offered = {"range": subscription}
        member = talk.ask("a member", join(group, instance_id="one", protocols=offered)).member_id
        assignment = (
            bytes.fromhex("0000 00000001")
            + bytes([0, len(topic)])
            + topic.encode()
            + bytes.fromhex("00000002 00000000 00000001 ffffffff")
        )
        talk.ask("its share", sync(group, member, 1, {member: assignment}, instance_id="one"))
        for view in ((), ("--members",), ("--members", "--verbose"), ("--state",)):
            groups(talk, f"busy: {view}", "--describe", *of_group, *view)
        groups(talk, "busy: deleted", "--delete", *of_group)
        reset = ("--reset-offsets", "--topic", topic, *of_group)
        groups(talk, "busy: reset", *reset, "--to-earliest", "--execute")
        talk.ask("it leaves", leave(group, (member, "one")))
        for target in (
            ("--to-earliest",),
            ("--to-latest",),
            ("--to-current",),
            ("--to-offset", "1"),
            ("--to-offset", "99"),
            ("--shift-by", "-1"),
            ("--by-duration", "PT30M"),
            ("--by-duration", "PT90M"),
        ):
            groups(talk, f"reset {target}", *reset, *target, "--dry-run")
        groups(talk, "reset", *reset, "--to-offset", "4", "--execute")
        groups(talk, "then", "--describe", *of_group)
        groups(talk, "offsets deleted", "--delete-offsets", "--topic", topic, *of_group)
        groups(talk, "deleted", "--delete", *of_group)
        groups(talk, "gone", "--describe", *of_group)
        groups(talk, "deleted again", "--delete", *of_group)

    twins.compare(script, at_once=False)


def test_an_open_transaction_is_terminated_while_its_producer_is_alive(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("victim")
        producer = start(talk, "victim")
        write(talk, producer, TV2, "victim", b"x")
        of = ("--transactionalId", "victim")
        transactions(talk, "terminated", "forceTerminateTransaction", *of)
        talk.settle("victim")
        late = producer.batch(b"late", sequence=1)
        talk.ask("it writes", produce("victim", late, transactional_id="victim"), TV2.produce)
        talk.ask("it commits", end(producer, commit=True), TV2.end_txn)
        look(talk, "in the end", "victim")

    twins.compare(script, at_once=False)
