"""Writes docs/cases.md: cases and past bugs of Kafka's transactions, with their tests.

A test names its case (`test_case_60_...`) or bug (`test_kafka_17754_...`) in its name, or the bug
in its text (KAFKA-17754). A bug may also be covered by the cases that came of it. WAITING lists
what has no test yet, with the reason. `--check` writes nothing and fails if something has no test.
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
            5: "an identity that nobody knows any more gets a new producer id",
            6: "half an identity is an invalid request",
            7: "an init that is repeated because its answer was lost gets the same epoch",
            8: "an epoch that another producer has overtaken is fenced",
            9: "a producer id that is no longer the id's own is fenced",
            10: "at the last epoch there is a new producer id, also for the repetition",
            11: "while an end is being written: come again",
            12: "while anything is being written: come again, and no epoch is used up",
            13: "an open transaction is aborted one epoch up; its owner gets the one after",
            14: "TV1: a fence that the disk refused uses up one epoch only",
            15: "TV2: the same",
            16: "fenced at the last epoch, both protocols",
            17: "not the coordinator here, or still loading",
            18: "two-phase commit (KIP-939): what is refused, and which timeouts it may have",
        },
        "AddPartitionsToTxn, AddOffsetsToTxn, verification": {
            19: "unknown id, empty id, wrong producer id, lower and higher epoch",
            20: "what has joined already joins without a record",
            21: "after an end, an add begins the next transaction",
            22: "while an end is being written: come again; also with the producer id that follows",
            23: "a missing or forbidden partition keeps all the others out",
            24: "verification changes nothing and does not mind what is pending",
            25: "two first writes of one id at a time, of the same and of different epochs",
        },
        "EndTxn": {
            26: "every state, outcome and epoch, in both protocols",
            27: "TV2: a repeated end gets the present identity again, and nothing is written",
            28: "TV2 at the last epoch: the repetition during and after the end",
            29: "TV2: an abort right after a commit waits and is never fenced",
            30: "TV2: a late end after a timeout",
            31: "TV2: the same at the last epoch, with one new producer id",
            32: "a Prepare record that cannot be written: which error, and nothing has changed",
            33: "the coordinator moves between Prepare and the markers",
            34: "a stale epoch in the words of each version",
        },
        "Time and load": {
            35: "which transactions time out, and which never do",
            36: "one that is changing is left for the next look",
            37: "after a timeout: fenced, and visible to read_uncommitted alone",
            38: "an id that has expired, and the producer that comes back",
            39: "forgotten by the partition alone, or by the coordinator alone",
            40: "tombstones that the disk refuses, that are too many for a batch",
            41: "what a load makes of tombstones, unknown versions, damage and gaps",
            42: "what was prepared is finished at load, once",
            43: "a load at a new epoch, and one that is called off",
            44: "a marker of the old epoch does not complete for the new one",
            45: "a clock that moves backwards stops nothing",
        },
        "Markers": {
            46: "errors that are tried again, that stop the run, and topics that are gone",
            47: "Complete is written once",
            48: "what nobody has confirmed is not written",
            49: "several markers in one request, each with its answer",
            50: "a group coordinator that is not there yet",
        },
        "Producers and logs": {
            51: "the last five batches are known, the sixth is not, an overlap is none of them",
            52: "gaps, and the wrap of sequences",
            53: "a higher epoch begins at 0, a lower one is refused",
            54: "only a marker is known of a producer",
            55: "a marker that raises the epoch, and how long it is remembered",
            56: "a plain batch inside of an open transaction",
            57: "a producer that is not known: TV2 begins at 0, TV1 anywhere",
            58: "after a failed verification nothing may overtake it",
            59: "a marker between verification and append; the guard of the next transaction",
            60: "the first write: added, refused, or told to come again, by version",
            61: "a stale epoch after a timeout is told as such",
            62: "two producers in one request",
            63: "a control batch of a client",
            64: "markers of an older coordinator",
            65: "epochs of markers in both protocols, and markers that come twice",
            66: "followers take what their leader has",
            67: "snapshots of producers, whole and damaged",
            68: "who is forgotten, and who never is",
        },
        "Last stable offset and reading": {
            69: "two transactions, and the high watermark over their markers",
            70: "the index of aborted transactions that overlap",
            71: "markers without data",
            72: "an aborted transaction over two segments",
            73: "records that are deleted below the last stable offset",
            74: "an index that cannot be written",
            75: "what an open transaction hides from fetches, ends and times",
            76: "a long poll that an abort has ended",
            77: "how many records are seen, and how many are there",
        },
        "Offsets and groups": {
            78: "who may commit, in every version",
            79: "late offsets meet the next transaction",
            80: "pending offsets: unstable, then settled or dropped",
            81: "a plain commit that came later wins",
            82: "offsets that were deleted while pending",
            83: "what is pending does not expire",
            84: "leader epoch and metadata come through",
            85: "a group that is rebalancing",
        },
        "End to end": {
            86: "the second producer fences the first, whatever that one asks for",
            87: "consume, transform, produce: each record once",
            88: "a tool that fences",
            89: "too few replicas at init",
            90: "tools that list, describe, find what hangs and end it",
        },
    }
)

WAITING: Final[Mapping[int, str]] = MappingProxyType(
    {
        66: "there is one copy of every partition, so there are no followers",
        89: "there is one copy of every partition, so there are never too few",
    }
)
IN_PART: Final[Mapping[int, str]] = MappingProxyType(
    {87: "with several brokers that are restarted in turn: waits for several brokers"}
)


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
                "a late write opens a transaction that nobody ends",
                (60,),
            ),
            Bug(("KAFKA-14884",), "a marker between verification and append", (59,)),
            Bug(("KAFKA-14904",), "verification refused for what is merely pending", (24,)),
            Bug(
                ("KAFKA-16352", "KAFKA-10080"),
                "markers completed by another epoch, or twice",
                (44, 47),
            ),
            Bug(("KAFKA-9749",), "a marker that the disk refused was given up", (46,)),
            Bug(("KAFKA-19999",), "a marker that came twice was refused for ever", (65,)),
            Bug(("KAFKA-20310",), "the next producer id was not in the log", (28,)),
            Bug(("KAFKA-20090",), "no new producer id for a fence at the last epoch", (16, 31)),
            Bug(("KAFKA-19367",), "an epoch was raised twice, past its end", (15,)),
            Bug(("KAFKA-18660",), "the wrong producer id was told at the last epoch", (28,)),
            Bug(("KAFKA-8803", "KAFKA-5415"), "assertions about time", (45,)),
            Bug(("KAFKA-9065",), "a load that never ended", (41,)),
            Bug(
                ("KAFKA-18137", "KAFKA-9307", "KAFKA-9235"),
                "what was loaded before stayed after a move",
                (43,),
            ),
            Bug(("KAFKA-9666",), "an epoch for every attempt while the log was away", (14,)),
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
                "an end was told before its offsets were settled",
                (50,),
                ("test_offsets_are_settled_before_the_answer",),
            ),
            Bug(("KAFKA-15784",), "a member that was fenced while the question was under way"),
            Bug(("KAFKA-19163",), "offsets that expired while pending", (82, 83)),
            Bug(("Redpanda 31483",), "offsets that were others after a restart", (81, 82)),
            Bug(("KAFKA-7866",), "an index that could not be written", (74,)),
            Bug(("KAFKA-9144",), "coordinator epochs that were forgotten too soon", (55, 64)),
            Bug(
                ("KAFKA-8335", "KAFKA-5490"),
                "compaction that took a producer's sequence away",
                (),
                ("test_the_last_batch_of_an_active_producer_stays_for_its_sequence",),
            ),
            Bug(("KAFKA-7692",), "the wrap of sequences", (52,)),
            Bug(
                ("KAFKA-12153",),
                "offsets after a truncation",
                (),
                ("test_a_failed_append_leaves_the_producer_where_it_was",),
            ),
            Bug(("KAFKA-9892",), "snapshots that were torn", (67,)),
            Bug(("KAFKA-20031",), "a producer id given out twice"),
            Bug(
                ("Redpanda 10671", "Redpanda 7143"),
                "readers ahead of what was known to be aborted",
                (69,),
            ),
            Bug(("Redpanda 7544",), "a last stable offset that went back", (69,)),
            Bug(("Redpanda 30003",), "open transactions that a snapshot forgot", (67,)),
            Bug(("Redpanda 6019",), "a transaction that was begun in memory only"),
            Bug(("Starlight 68",), "a load that refused what was in the log"),
            Bug(("KoP 1412",), "prepared for ever after a restart", (42,)),
            Bug(("KoP 1856",), "readers beyond the last stable offset", (75,)),
        ),
        "Wrong errors": (
            Bug(("KAFKA-10687", "KAFKA-19690"), "a stale epoch in a produce reply", (61,)),
            Bug(("KAFKA-18042",), "a stale epoch for which the coordinator was asked"),
            Bug(("KAFKA-15459",), "errors of the coordinator that old producers give up on", (60,)),
            Bug(("KAFKA-14417",), "no producer id to be had", (17,)),
            Bug(("KAFKA-16570",), "a fence is told as: come again", (13, 88)),
            Bug(("KAFKA-18659",), "versions of Produce that a client takes offence at"),
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
        if path.name == "test_cases.py":  # It speaks of cases and shows none.
            continue
        source = path.read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                text = ast.get_source_segment(source, node) or ""
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
        "The behaviour of Apache Kafka's transactions in 90 cases, and the bugs that Kafka "
        "and others had in theirs. A"
    )
    yield "case is shown by the tests with its number in their names. This page is written by"
    yield "`python -m tools.list_cases`; a test fails when something is shown by nothing."
    for title, cases in CASES.items():
        yield from ("", f"## {title}", "", "| case | what | shown by |", "|---|---|---|")
        for number, what in cases.items():
            yield f"| {number} | {what} | {_shown(number, tests)} |"
    yield from ("", "# Bugs of the past")
    for title, bugs in BUGS.items():
        yield from ("", f"## {title}", "", "| bug | what | shown by |", "|---|---|---|")
        for bug in bugs:
            yield f"| {', '.join(bug.names)} | {bug.what} | {_shown_bug(bug, tests)} |"


def _shown(number: int, tests: Sequence[Shown]) -> str:
    if number in WAITING:
        return f"*waits: {WAITING[number]}*"
    shown = _sentences(showing_case(number, tests))
    return f"{shown}<br>*{IN_PART[number]}*" if number in IN_PART else shown


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
