"""Goal: DescribeTransactions, ListTransactions and DescribeProducers show what Apache Kafka shows.

Method: twin runs (see the package's docstring).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.describe_producers import DescribeProducersRequest, TopicRequest
from fencepost.wire.forms.describe_transactions import DescribeTransactionsRequest
from fencepost.wire.forms.list_transactions import ListTransactionsRequest
from tests.compat.twin.talk import Ask
from tests.compat.twin.transactional import (
    add,
    describe,
    finish,
    init,
    marker,
    producers,
    start,
    write,
)
from tests.transactions.protocol import TV1, TV2

if TYPE_CHECKING:
    from tests.compat.twin.talk import Talk, Twins


PATTERNS = [
    "list-.*",
    "list",
    "list-open",
    ".*open",
    "(?i)LIST-OPEN",
    "^list-open$",
    "list-(open|empty)",
    "[",
    "*",
    "(",
    "(",
    ")",
    r"list-\w+",
    "(?<n>list-open)",
    "(?P<n>list-open)",
    "(?=list).*",
    "(?!x).*",
    "(?<=t).*",
    r"(l)ist-\1",
    "l{1001}",
    "l{3,2}",
    "l++",
    "l*+",
    "l**",
    "(?>l).*",
    r"list-open\z",
    r"list-open\Z",
    r"\A.*",
    "list[-+*]open",
    r"list\-open",
    "(?m)^.*$",
    "(?s).*",
    "(?x)list-open",
    "(?#list)list-open",
    r"\h",
    r"\k<n>",
    "list-open|",
    "{",
    "l{",
    "}",
    "]",
    r"\_",
    "(?i:LIST).*",
    "\\",
    "(?:)",
    "l{2}{3}",
    "(?P=n)",
    "(?(1)a|b)",
    "list-[a-z&&o]*",
    r"\pL.*",
    r"\p{^Lu}*",
    r"\P{Ll}*",
    "[[:alpha:]-]*",
    "[[:^digit:]]*",
    "[[:nobody:]]*",
    r"\Qlist-open\E",
    r"\Qlist-ope\En+",
    "(?U)list.*?",
    "(?s-s)list.*",
    "(?i-)list.*",
    "(?)list.*",
    "(?-)list.*",
    "{2}",
    r"[a-\d]*",
    r"[\w-]*",
    "[b-a]",
    r"\x6cist-open",
    r"\x{6c}ist-open",
    r"\154ist-open",
    r"\8",
    r"list\b-\bopen",
    r"list\B-.*",
    "(?i)[^L]ist-open",
    "(list|-|open)*",
    "li{0}.*",
    "(l?){40}ist-open",
    r"\p{Latin}.*",
    ".{900}|.{900}|.{900}|.*",
]


def listed(**filters: Any) -> Ask:
    return Ask(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest(**filters))


def mine(prefix: str) -> Any:
    """The listed transactions of one script only: others leave theirs behind."""

    def see(reply: Any) -> Any:
        reply.transaction_states = [
            state for state in reply.transaction_states if state.transactional_id.startswith(prefix)
        ]
        return reply

    return see


def test_transactions_are_listed_by_every_filter(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("list")
        ids = {}
        for name in ("list-empty", "list-open", "list-committed", "list-aborted"):
            ids[name] = start(talk, name)
        write(talk, ids["list-open"], TV1, "list", b"x")
        write(talk, ids["list-committed"], TV2, "list", b"x")
        finish(talk, ids["list-committed"], TV2, commit=True)
        talk.ask("added", add(ids["list-aborted"], "list"), 3)
        finish(talk, ids["list-aborted"], TV1, commit=False)
        see = mine("list-")
        for version in (0, 1, 2):
            talk.ask(f"all, v{version}", listed(), version, see=see)
        states = [
            "Empty",
            "Ongoing",
            "PrepareCommit",
            "PrepareAbort",
            "CompleteCommit",
            "CompleteAbort",
            "PrepareEpochFence",
            "Dead",
            "ongoing",
            "Nonsense",
            "",
        ]
        for state in states:
            talk.ask(f"state {state!r}", listed(state_filters=[state]), see=see)
        some = ["Empty", "Ongoing", "Nonsense", "More nonsense"]
        talk.ask("some states", listed(state_filters=some), see=see)
        own = [ids["list-open"].producer_id, ids["list-empty"].producer_id, 987654321]
        talk.ask("by producer id", listed(producer_id_filters=own), see=see)
        both = listed(producer_id_filters=own, state_filters=["Ongoing"])
        talk.ask("by both", both, see=see)
        for duration_ms in (-1, 0, 1_000_000, 2**62):
            talk.ask(f"longer than {duration_ms}", listed(duration_filter=duration_ms), see=see)
        for pattern in PATTERNS:
            ask = listed(transactional_id_pattern=pattern)
            talk.ask(f"pattern {pattern!r}", ask, see=see)
        talk.ask("no pattern", listed(transactional_id_pattern=""), see=see)
        for pattern in (r"\C", "(?P<n>l)(?P<n>i).*", "l{9999999999}", "l{300}" * 300):
            row = "the syntax of patterns in ListTransactions"
            ask = listed(transactional_id_pattern=pattern)
            talk.ask(f"pattern {pattern!r}", ask, see=see, differs=row)
        talk.ask("described", describe(*ids, "list-nobody", ""))
        talk.ask("the same twice", describe("list-open", "list-open"))
        talk.ask("none", Ask(ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest()))

    twins.compare(script)


def test_producers_are_described(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("seen", 2)
        first, second = start(talk, "seen-1"), start(talk, "seen-2")
        talk.ask("no producer", producers("seen", 0, 1))
        write(talk, first, TV1, "seen", b"x", b"y")
        write(talk, second, TV2, "seen", b"x")
        write(talk, second, TV2, "seen", b"x", index=1)
        talk.ask("both are open", producers("seen", 0, 1))
        finish(talk, first, TV1, commit=True)
        talk.ask("one is open", producers("seen", 0, 1))
        finish(talk, second, TV2, commit=False)
        talk.ask("none is open", producers("seen", 0, 1))
        talk.ask("a marker", marker(first.at(epoch=8), {"seen": [1]}, commit=True))
        talk.ask("one with a marker only", producers("seen", 0, 1))
        talk.ask("unknown partitions", producers("seen", 5, -1))
        talk.ask("an unknown topic", producers("seen-none", 0))
        talk.ask("an illegal topic", producers("a b", 0))
        talk.ask("an empty name", producers("", 0))
        topics = [
            TopicRequest(name="seen", partition_indexes=[]),
            TopicRequest(name="seen-none", partition_indexes=[0]),
        ]
        ask = Ask(ApiKey.DESCRIBE_PRODUCERS, DescribeProducersRequest(topics=topics))
        talk.ask("no partition", ask)
        talk.ask("no topic", Ask(ApiKey.DESCRIBE_PRODUCERS, DescribeProducersRequest()))
        talk.ask("a new epoch", init("seen-1"))
        talk.ask("that the partition has not seen", producers("seen", 0))

    twins.compare(script)
