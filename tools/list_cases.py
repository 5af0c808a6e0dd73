"""Writes docs/cases.md: cases of Kafka's behaviour, past bugs, and the tests that show them.

A test names its case (`test_case_60_...`) or its bug, in its name (`test_kafka_17754_...`) or its
text (KAFKA-17754). A bug may also be shown by the cases that it led to. Cases of fetch, groups and
Spark list their tests in MORE_CASES. Cases without a test are in WAITING with the reason. `--check`
writes nothing and fails if a case or bug has no test.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "cases.md"

CASES: Final[Mapping[str, Mapping[int, str]]] = MappingProxyType(
    {
        "InitProducerId": {
            1: "without a transactional id: a fresh producer id each time, nothing logged",
            2: "an empty id is an invalid request",
            3: "timeouts from 1 to the maximum, and no other",
            4: "a new id begins at epoch 0, and goes up by one with each init",
            5: "an expired identity gets a new producer id",
            6: "half an identity is an invalid request",
            7: "a retry whose first reply was lost gets the same epoch",
            8: "an epoch that another producer has overtaken is fenced",
            9: "a former producer id of the transactional id is fenced",
            10: "at the last epoch there is a new producer id, for a retry too",
            11: "while an end is being written: retriable error",
            12: "while anything is being written: retriable error, and no epoch is used",
            13: "an open transaction is aborted one epoch up; its owner gets the one after",
            14: "TV1: a fence that could not be written uses one epoch only",
            15: "TV2: the same",
            16: "fenced at the last epoch, both protocols",
            17: "not the coordinator here, or still loading",
            18: "two-phase commit (KIP-939): what is refused, and which timeouts it may have",
        },
        "AddPartitionsToTxn, AddOffsetsToTxn, verification": {
            19: "unknown id, empty id, wrong producer id, lower and higher epoch",
            20: "partitions that are in the transaction are added without a record",
            21: "after an end, an add begins the next transaction",
            22: "while an end is being written: retriable error, also with the next producer id",
            23: "a missing or forbidden partition keeps all the others out",
            24: "verification changes nothing and ignores pending ids",
            25: "two concurrent first writes of one id, at the same and at different epochs",
        },
        "EndTxn": {
            26: "every state, outcome and epoch, in both protocols",
            27: "TV2: a repeated end gets the current identity, without a record",
            28: "TV2 at the last epoch: a retry during and after the end",
            29: "TV2: an abort right after a commit waits and is never fenced",
            30: "TV2: a late end after a timeout",
            31: "TV2: the same at the last epoch, with one new producer id",
            32: "a Prepare record that cannot be written: which error, and nothing has changed",
            33: "the coordinator moves between Prepare and the markers",
            34: "a stale epoch: the error of each version",
        },
        "Time and load": {
            35: "which transactions time out, and which never do",
            36: "a changing transaction is left for the next scan",
            37: "after a timeout: fenced, and visible to read_uncommitted alone",
            38: "an id that has expired, and the producer that comes back",
            39: "forgotten by the partition alone, or by the coordinator alone",
            40: "tombstones that cannot be written or exceed a batch",
            41: "loading tombstones, unknown versions, damage and gaps",
            42: "prepared transactions are finished at load, once",
            43: "a load at a new epoch, and a cancelled one",
            44: "a marker of the old epoch does not complete for the new one",
            45: "a clock that moves backwards stops nothing",
        },
        "Markers": {
            46: "errors that are retried, that stop the run, and deleted topics",
            47: "Complete is written once",
            48: "Complete is not written before all markers are confirmed",
            49: "several markers in one request, each with its result",
            50: "a group coordinator that is not available yet",
        },
        "Producers and logs": {
            51: "the last five batches are duplicates, the sixth and an overlap are not",
            52: "gaps, and the wrap of sequences",
            53: "a higher epoch begins at 0, a lower one is refused",
            54: "a producer of which only a marker is left",
            55: "a marker that raises the epoch, and how long it is remembered",
            56: "a plain batch inside an open transaction",
            57: "an unknown producer: TV2 begins at 0, TV1 anywhere",
            58: "no later batch may overtake a failed verification",
            59: "a marker between verification and append; the guard of the next transaction",
            60: "the first write: added, refused, or retriable, by version",
            61: "a stale epoch after a timeout: the right error",
            62: "two producers in one request",
            63: "a control batch of a client",
            64: "markers of an older coordinator",
            65: "epochs of markers in both protocols, and markers that come twice",
            66: "followers replicate their leader",
            67: "snapshots of producers, whole and damaged",
            68: "which producers expire, and which never do",
        },
        "Last stable offset and reading": {
            69: "two transactions, and the high watermark over their markers",
            70: "the index of aborted transactions that overlap",
            71: "markers without data",
            72: "an aborted transaction over two segments",
            73: "records that are deleted below the last stable offset",
            74: "an index that cannot be written",
            75: "what an open transaction hides from fetches, end offsets and times",
            76: "a long poll that an abort ends",
            77: "records seen against records in the log",
        },
        "Offsets and groups": {
            78: "who may commit, in every version",
            79: "late offsets meet the next transaction",
            80: "pending offsets: unstable, then settled or dropped",
            81: "a later plain commit wins",
            82: "offsets that were deleted while pending",
            83: "pending offsets do not expire",
            84: "leader epoch and metadata are kept",
            85: "a group that is rebalancing",
        },
        "End to end": {
            86: "the second producer fences the first, in every request",
            87: "consume, transform, produce: each record once",
            88: "a tool that fences",
            89: "too few replicas at init",
            90: "tools that list, describe, find hanging transactions and abort them",
        },
    }
)

WAITING: Final[Mapping[int, str]] = MappingProxyType(
    {
        66: "not applicable: there is one copy of every partition, so there are no followers",
    }
)


MORE_CASES: Final[Mapping[str, Sequence[tuple[str, tuple[str, ...]]]]] = MappingProxyType(
    {
        "Fetch": (
            (
                "a fetch waits for min.bytes, up to max.wait.ms, and an append wakes it",
                (
                    "test_a_poll_waits_for_its_minimum_bytes",
                    "test_a_poll_is_woken_by_a_produce_on_another_connection",
                    "test_a_poll_returns_less_than_its_minimum_bytes_after_its_maximum_wait",
                ),
            ),
            (
                "an error in one partition is returned at once",
                (
                    "test_an_error_in_one_partition_does_not_wait_for_the_others",
                    "test_a_poll_returns_immediately_when_its_topic_is_deleted",
                ),
            ),
            (
                "the first batch is returned whatever its size (KIP-74), and only that one",
                (
                    "test_a_batch_larger_than_the_limit_is_still_returned",
                    "test_only_the_first_partition_may_exceed_the_limit_of_the_request",
                ),
            ),
            (
                "sessions (KIP-227) are refused in favour of full fetches",
                (
                    "test_a_client_that_requests_a_session_is_served_without_one",
                    "test_an_unknown_session_is_not_found",
                ),
            ),
            (
                "topic ids (KIP-516)",
                (
                    "test_a_topic_may_be_fetched_by_its_id",
                    "test_a_fetch_with_an_unknown_topic_id_gets_an_error",
                    "test_a_topic_may_be_written_by_its_id",
                    "test_a_produce_with_an_unknown_topic_id_gets_an_error",
                ),
            ),
            (
                "leader epochs (KIP-320)",
                (
                    "test_a_fetch_with_another_leader_epoch_gets_an_error",
                    "test_an_unknown_last_fetched_epoch_is_out_of_range",
                    "test_an_epoch_ends_where_the_next_one_begins",
                ),
            ),
            (
                "read_committed stops at the last stable offset; the end of a transaction wakes it",
                (
                    "test_case_75_read_committed_stops_at_the_first_open_transaction",
                    "test_read_committed_polls_are_not_woken_while_a_transaction_is_open",
                    "test_the_end_of_a_transaction_wakes_read_committed_polls",
                ),
            ),
            (
                "our client drops aborted records by the list in the reply",
                (
                    "test_an_aborted_transaction_is_hidden_up_to_its_marker",
                    "test_random_histories_are_read_correctly_in_pieces",
                ),
            ),
            (
                "ListOffsets by time",
                (
                    "test_an_offset_is_found_by_timestamp",
                    "test_a_special_timestamp_is_unsupported_before_its_version",
                ),
            ),
            (
                "slow readers cost a bounded amount of memory",
                (
                    "test_a_client_that_stops_reading_uses_a_bounded_amount_of_memory",
                    "test_replies_that_wait_behind_a_long_poll_are_also_bounded",
                ),
            ),
        ),
        "Groups": (
            (
                "join, sync, heartbeat, leave; the leader assigns",
                (
                    "test_members_join_and_each_gets_its_own_assignment",
                    "test_only_the_leader_receives_the_list_of_members",
                    "test_a_member_joins_syncs_sends_a_heartbeat_and_leaves",
                ),
            ),
            (
                "every request in every state",
                ("test_every_request_in_every_state_gets_kafkas_error",),
            ),
            (
                "a new member gets its id first (KIP-394)",
                (
                    "test_a_member_without_an_id_is_given_one_and_joins_again_with_it",
                    "test_the_number_of_member_ids_that_have_not_joined_is_bounded",
                ),
            ),
            (
                "static members (KIP-345) return without a rebalance, and fence their predecessor",
                (
                    "test_a_restarted_follower_gets_its_assignment_without_a_rebalance",
                    "test_the_old_process_of_an_instance_is_fenced",
                    "test_an_administrator_removes_static_members_by_their_instance",
                ),
            ),
            (
                "a returning leader may skip the assignment (KIP-814)",
                ("test_a_restarted_leader_gets_the_members_and_need_not_assign",),
            ),
            (
                "the initial rebalance delay (KIP-134)",
                (
                    "test_an_empty_group_waits_for_more_members_before_its_first_generation",
                    "test_the_wait_ends_at_the_rebalance_timeout_however_many_join",
                ),
            ),
            (
                "cooperative rebalancing (KIP-429)",
                ("test_a_cooperative_rebalance_takes_two_generations",),
            ),
            (
                "sessions, rebalance timeouts, and members that never sync",
                (
                    "test_a_silent_member_is_removed_when_its_session_ends",
                    "test_members_that_do_not_rejoin_in_time_are_removed",
                    "test_members_that_never_sync_are_removed",
                ),
            ),
            (
                "group.max.size (KIP-389)",
                (
                    "test_a_full_group_accepts_no_new_member",
                    "test_after_the_size_limit_is_lowered_the_last_members_to_rejoin_are_refused",
                ),
            ),
            (
                "the protocol with the most votes is selected",
                ("test_the_protocol_with_the_most_votes_among_the_common_ones_is_chosen",),
            ),
            (
                "offsets expire by offsets.retention.minutes (KIP-211)",
                (
                    "test_the_retention_of_offsets_starts_when_the_last_member_leaves",
                    "test_old_offsets_of_unsubscribed_topics_expire_in_a_stable_group",
                    "test_no_offset_expires_during_a_rebalance",
                ),
            ),
            (
                "OffsetDelete and DeleteGroups (KIP-496, KIP-229)",
                (
                    "test_offsets_of_subscribed_topics_are_not_deleted",
                    "test_an_empty_group_is_deleted_with_its_offsets",
                ),
            ),
            (
                "offsets belong to a topic id, not to its name",
                (
                    "test_an_offset_of_a_deleted_topic_is_not_used_for_a_recreated_topic",
                    "test_after_a_crash_during_a_deletion_no_other_topic_gets_the_offsets",
                ),
            ),
            (
                "a restart, a compacted log and a power loss lead to the same state",
                (
                    "test_a_group_survives_a_restart",
                    "test_groups_match_the_log_before_and_after_compaction",
                    "test_an_acknowledged_offset_never_goes_back",
                ),
            ),
        ),
        "Spark": (
            (
                "a batch is one transaction: every row once",
                (
                    "test_every_row_is_written_once_to_the_partition_of_its_key",
                    "test_several_dataframes_are_one_transaction",
                ),
            ),
            (
                "a driver, worker, executor or broker dies at any step",
                (
                    "test_a_driver_that_dies_at_any_step_loses_and_duplicates_nothing",
                    "test_a_batch_is_written_once_if_a_worker_is_killed_in_mid_write",
                    "test_a_batch_is_written_once_if_an_executor_is_killed_in_mid_write",
                    "test_the_sink_survives_a_broker_killed_in_mid_write",
                ),
            ),
            (
                "late executors and second queries are fenced",
                (
                    "test_an_executor_that_resumes_during_the_next_batch_cannot_write",
                    "test_two_live_queries_cannot_share_a_transactional_id",
                ),
            ),
            (
                "an unknown outcome of EndTxn is resolved",
                (
                    "test_an_unknown_outcome_of_end_txn_is_resolved_from_the_ledger",
                    "test_an_unknown_outcome_does_not_fence_a_successor",
                ),
            ),
            (
                "the ledger decides what happens to a repeated batch",
                (
                    "test_the_ledger_decides_what_happens_to_a_batch",
                    "test_a_copied_checkpoint_writes_nothing_twice",
                    "test_a_new_checkpoint_is_refused_unless_it_is_adopted",
                ),
            ),
            (
                "a lost ledger is noticed",
                ("test_a_ledger_deleted_while_the_query_is_stopped_is_noticed",),
            ),
            (
                "source offsets are committed in the transaction",
                (
                    "test_the_entry_and_the_source_offsets_are_committed_together_or_not_at_all",
                    "test_offsets_of_a_source_on_the_same_cluster_are_committed_in_the_transaction",
                ),
            ),
            (
                "the source reads committed records only, each once",
                (
                    "test_committed_records_are_read_with_all_columns_and_aborted_ones_are_not",
                    "test_tasks_cover_every_offset_once",
                ),
            ),
            (
                "data loss stops the source (failOnDataLoss)",
                (
                    "test_records_deleted_before_they_are_read_are_data_loss_by_default",
                    "test_a_recreated_topic_is_data_loss_even_if_it_is_longer_than_the_old_one",
                ),
            ),
            (
                "topics that are deleted or created again while a query runs",
                (
                    "test_a_recreated_topic_is_read_from_its_first_record",
                    "test_records_of_a_recreated_topic_are_never_read_in_place_of_the_planned_ones",
                ),
            ),
            (
                "an open transaction that blocks the source is named",
                ("test_a_blocked_query_names_the_transaction_that_blocks_it",),
            ),
            (
                "sessions without the needed guarantees are refused",
                ("test_sessions_that_cannot_guarantee_exactly_once_are_refused_and_lose_nothing",),
            ),
        ),
    }
)
"""By title: what, and the tests that show it."""


class Bug(NamedTuple):
    """A past bug of Kafka's transactions."""

    names: tuple[str, ...]
    what: str
    cases: tuple[int, ...] = ()
    tests: tuple[str, ...] = ()
    """Names of tests that cover it without naming it."""


BUGS: Final[Mapping[str, Sequence[Bug]]] = MappingProxyType(
    {
        "Hanging and stuck": (
            Bug(
                ("KAFKA-14402", "KAFKA-12671"),
                "a late write opens a transaction that is never ended",
                (60,),
            ),
            Bug(("KAFKA-14884",), "a marker between verification and append", (59,)),
            Bug(("KAFKA-14904",), "verification refused for a pending id", (24,)),
            Bug(
                ("KAFKA-16352", "KAFKA-10080"),
                "markers completed by another epoch, or twice",
                (44, 47),
            ),
            Bug(("KAFKA-9749",), "a marker that could not be written was given up", (46,)),
            Bug(("KAFKA-19999",), "a repeated marker was refused forever", (65,)),
            Bug(("KAFKA-20310",), "the next producer id was not in the log", (28,)),
            Bug(("KAFKA-20090",), "no new producer id for a fence at the last epoch", (16, 31)),
            Bug(("KAFKA-19367",), "an epoch was raised twice, past its end", (15,)),
            Bug(("KAFKA-18660",), "the wrong producer id was returned at the last epoch", (28,)),
            Bug(("KAFKA-8803", "KAFKA-5415"), "assertions about time", (45,)),
            Bug(("KAFKA-9065",), "a load that never ended", (41,)),
            Bug(
                ("KAFKA-18137", "KAFKA-9307", "KAFKA-9235"),
                "state stayed loaded after a move",
                (43,),
            ),
            Bug(("KAFKA-9666",), "an epoch for every attempt while the log was unavailable", (14,)),
            Bug(("KAFKA-14880", "KAFKA-13099"), "ids that could not expire", (40,)),
        ),
        "Wrong data": (
            Bug(("KAFKA-17754",), "a late EndTxn of TV1 decides the next transaction"),
            Bug(("KAFKA-9600",), "an end at an epoch that was never given out", (26,)),
            Bug(("KAFKA-18464",), "TV2: a producer that fenced itself", (29,)),
            Bug(
                ("KAFKA-18575", "KAFKA-18654"),
                "TV2: the guard of the next transaction, lost",
                (59,),
            ),
            Bug(("KAFKA-18227",), "from TV1 to TV2 within one epoch"),
            Bug(
                ("KAFKA-17507",),
                "an end was answered before its offsets were final",
                (50,),
                ("test_offsets_are_settled_before_the_reply",),
            ),
            Bug(("KAFKA-15784",), "a member that was fenced during verification"),
            Bug(("KAFKA-19163",), "offsets that expired while pending", (82, 83)),
            Bug(("Redpanda 31483",), "offsets that differed after a restart", (81, 82)),
            Bug(("KAFKA-7866",), "an index that could not be written", (74,)),
            Bug(("KAFKA-9144",), "coordinator epochs that were forgotten too soon", (55, 64)),
            Bug(
                ("KAFKA-8335", "KAFKA-5490"),
                "compaction that removed a producer's last sequence",
                (),
                ("test_the_last_batch_of_an_active_producer_is_kept_for_its_sequence",),
            ),
            Bug(("KAFKA-7692",), "the wrap of sequences", (52,)),
            Bug(
                ("KAFKA-12153",),
                "offsets after a truncation",
                (),
                ("test_a_failed_append_does_not_change_the_state_of_its_producer",),
            ),
            Bug(("KAFKA-9892",), "snapshots that were torn", (67,)),
            Bug(("KAFKA-20031",), "a producer id given out twice"),
            Bug(
                ("Redpanda 10671", "Redpanda 7143"),
                "readers ahead of the aborted index",
                (69,),
            ),
            Bug(("Redpanda 7544",), "a last stable offset that went back", (69,)),
            Bug(("Redpanda 30003",), "open transactions that a snapshot forgot", (67,)),
            Bug(("Redpanda 6019",), "a transaction that was begun in memory only"),
            Bug(("Starlight 68",), "a load that refused what was in the log"),
            Bug(("KoP 1412",), "prepared forever after a restart", (42,)),
            Bug(("KoP 1856",), "readers beyond the last stable offset", (75,)),
        ),
        "Wrong errors": (
            Bug(("KAFKA-10687", "KAFKA-19690"), "a stale epoch in a produce reply", (61,)),
            Bug(("KAFKA-18042",), "a stale epoch that reached the coordinator"),
            Bug(("KAFKA-15459",), "errors of the coordinator that old producers give up on", (60,)),
            Bug(("KAFKA-14417",), "no producer id available", (17,)),
            Bug(("KAFKA-16570",), "a fence was answered with a retriable error", (13, 88)),
            Bug(("KAFKA-18659",), "versions of Produce that break a client"),
            Bug(("KAFKA-7296",), "a code that clients before 2.0 crash on"),
            Bug(("KAFKA-14920", "KAFKA-18202"), "sequences after a failed verification", (57, 58)),
        ),
    }
)


class Shown(NamedTuple):
    """One test function."""

    name: str
    path: str
    text: str

    @property
    def sentence(self) -> str:
        """Its name as a sentence."""
        words = re.sub(r"^test_(case_\d+_)?((kafka|redpanda|starlight|kop)_\d+_)?", "", self.name)
        return words.replace("_", " ")


def find_tests(folder: Path = ROOT / "tests") -> list[Shown]:
    """All tests of the project, in file order."""
    found = []
    for path in sorted(folder.rglob("test_*.py")):
        if path.name == "test_cases.py":  # It tests this page and shows no case.
            continue
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                found.append(Shown(node.name, path.relative_to(ROOT).as_posix(), text))
    return found


def showing_case(number: int, tests: Sequence[Shown]) -> list[Shown]:
    """The tests that name the case."""
    return [test for test in tests if re.search(rf"_case_{number}_", test.name)]


def showing_bug(bug: Bug, tests: Sequence[Shown]) -> list[Shown]:
    """The tests that name the bug, and those that are known to cover it."""
    found = []
    for test in tests:
        for name in bug.names:
            tracker, number = re.split(r"[- ]", name)
            in_name = re.search(rf"_{tracker.lower()}_{number}_", test.name)
            if in_name or re.search(rf"{name}\b", test.text) or test.name in bug.tests:
                found.append(test)
                break
    return found


def missing(tests: Sequence[Shown]) -> list[str]:
    """Cases and bugs without a test, and names of tests that do not exist."""
    names = {test.name for test in tests}
    problems = [
        f"case {number}: no test is called test_case_{number}_..."
        for cases in CASES.values()
        for number in cases
        if number not in WAITING and not showing_case(number, tests)
    ]
    for bugs in BUGS.values():
        for bug in bugs:
            problems += [
                f"{bug.names[0]}: no test is called {t}" for t in bug.tests if t not in names
            ]
            if not bug.cases and not showing_bug(bug, tests):
                problems.append(f"{bug.names[0]}: no test names it")
    problems += [
        f"{title}, {what}: no test is called {test}"
        for title, cases in MORE_CASES.items()
        for what, shown_by in cases
        for test in shown_by
        if test not in names
    ]
    problems += [
        f"case {number} is said to wait, but there are tests of it"
        for number in WAITING
        if showing_case(number, tests)
    ]
    return problems


def page(tests: Sequence[Shown]) -> Iterator[str]:
    """The lines of docs/cases.md."""
    yield "# What is shown by which test"
    yield ""
    yield (
        "Apache Kafka's transactions in 90 cases, each with the tests that have its number in their"
    )
    yield (
        "names; cases of fetch, groups and Spark; and the bugs that Kafka and others had. "
        "Written by"
    )
    yield "`python -m tools.list_cases`; a test fails if a case has no test."
    for title, cases in CASES.items():
        yield from ("", f"## {title}", "", "| case | what | shown by |", "|---|---|---|")
        for number, what in cases.items():
            yield f"| {number} | {what} | {_shown(number, tests)} |"
    for title, more in MORE_CASES.items():
        yield from ("", f"## {title}", "", "| case | what | shown by |", "|---|---|---|")
        for number, (what, names) in enumerate(more, 1):
            shown = _sentences([test for test in tests if test.name in names])
            yield f"| {title[0]}{number} | {what} | {shown} |"
    yield from ("", "# Past bugs")
    for title, bugs in BUGS.items():
        yield from ("", f"## {title}", "", "| bug | what | shown by |", "|---|---|---|")
        for bug in bugs:
            yield f"| {', '.join(bug.names)} | {bug.what} | {_shown_bug(bug, tests)} |"


def _shown(number: int, tests: Sequence[Shown]) -> str:
    if number in WAITING:
        return f"*waits: {WAITING[number]}*"
    return _sentences(showing_case(number, tests))


def _shown_bug(bug: Bug, tests: Sequence[Shown]) -> str:
    cases = [f"case {number}" for number in bug.cases]
    sentences = _sentences(showing_bug(bug, tests))
    return "<br>".join(filter(None, [", ".join(cases), sentences]))


def _sentences(tests: Sequence[Shown]) -> str:
    return "<br>".join(
        f"{test.sentence} ([{Path(test.path).stem}](../{test.path}))" for test in tests
    )


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if something has no test."""
    tests = find_tests()
    problems = missing(tests)
    for problem in problems:
        print(problem, file=sys.stderr)
    if "--check" not in arguments:
        PAGE.write_text("\n".join(page(tests)) + "\n", encoding="utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
