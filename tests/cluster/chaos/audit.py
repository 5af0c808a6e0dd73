"""What must be true after any faults. Every auditor takes plain values and returns problems.

copies        every record of the source once, none twice, none that was to be aborted
order         copies of one source partition have its order, in every partition of `copies`
source        the feeder's records, once each and in order
views         what a reader saw during the faults is what readers see afterwards
transactions  none is open, and no last stable offset is behind
producer ids  none belongs to two producers
offsets       the groups stand at the end of what was copied
log           no broker has failed an assertion or logged a traceback
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tests.cluster.chaos.copier import Copy

SHOWN: Final = 5
"""How many of many similar problems are reported."""

COMPLAINTS: Final = re.compile(
    r"Traceback|AssertionError|assertion|exit code 70|CRITICAL|a callback failed|never retrieved",
    re.IGNORECASE,
)


class Seen(NamedTuple):
    """A record of `copies` and where it stands."""

    partition: int
    offset: int
    copy: Copy


class OpenTransaction(NamedTuple):
    """A transaction that is open at a coordinator or in a partition."""

    where: str
    producer: str


def audit_copies(source: Mapping[int, Sequence[int]], seen: Iterable[Seen]) -> list[str]:
    """`source` has the offsets of the records of each partition."""
    counts: Counter[tuple[int, int]] = Counter()
    problems = []
    for each in seen:
        counts[each.copy.partition, each.copy.offset] += 1
        if each.copy.is_doomed:
            problems.append(f"{_place(each)} shows a record of an aborted transaction: {each.copy}")
    wanted = {(partition, offset) for partition, found in source.items() for offset in found}
    missing = sorted(wanted - counts.keys())
    strange = sorted(counts.keys() - wanted)
    doubled = sorted(place for place, count in counts.items() if count > 1)
    return [
        *_some(problems),
        *_some([f"source-{p}@{o} was never copied" for p, o in missing]),
        *_some([f"source-{p}@{o} was copied {counts[p, o]} times" for p, o in doubled]),
        *_some([f"a copy of source-{p}@{o}, which does not exist" for p, o in strange]),
    ]


def audit_order(seen: Iterable[Seen]) -> list[str]:
    """Copies of one source partition must keep its order."""
    last: dict[tuple[int, int], Seen] = {}
    problems = []
    for each in sorted(seen, key=lambda one: (one.partition, one.offset)):
        line = each.partition, each.copy.partition
        before = last.get(line)
        if before is not None and each.copy.offset < before.copy.offset:
            problems.append(
                f"{_place(each)} has source offset {each.copy.offset} after "
                f"{before.copy.offset} at {before.offset}, of source-{each.copy.partition}"
            )
        last[line] = each
    return _some(problems)


def audit_source(fed: Mapping[int, Sequence[str]], found: Mapping[int, Sequence[str]]) -> list[str]:
    """What an idempotent producer was told is in the log, against what it was given."""
    problems = []
    for partition, values in fed.items():
        logged = found.get(partition, ())
        if list(values) != list(logged):
            at = next(
                (n for n, pair in enumerate(zip(values, logged, strict=False)) if len({*pair}) > 1),
                min(len(values), len(logged)),
            )
            problems.append(
                f"source-{partition} has {len(logged)} records, {len(values)} were written; "
                f"they differ from record {at} on"
            )
    return problems


def audit_views(during: Iterable[Seen], after: Iterable[Seen]) -> list[str]:
    """A committed record never changes or vanishes, and none appears behind a reader."""
    before = {(each.partition, each.offset): each.copy for each in during}
    later = {(each.partition, each.offset): each.copy for each in after}
    problems = []
    for (partition, offset), copy in sorted(before.items()):
        if later.get((partition, offset)) != copy:
            problems.append(f"copies-{partition}@{offset} was {copy} and is gone or another one")
    for partition, offset in sorted(later.keys() - before.keys()):
        problems.append(f"copies-{partition}@{offset} was never seen by the reader that passed it")
    return _some(problems)


def audit_transactions(
    listed: Mapping[str, str],
    in_partitions: Iterable[OpenTransaction],
    stable: Mapping[str, tuple[int, int]],
) -> list[str]:
    """`listed` has the state of each id, `stable` last stable offset and high watermark."""
    ended = ("Empty", "CompleteCommit", "CompleteAbort")
    return [
        *(f"{name} is still {state}" for name, state in listed.items() if state not in ended),
        *(f"{each.where} has an open transaction of {each.producer}" for each in in_partitions),
        *(
            f"{name}: the last stable offset {lso} is behind the high watermark {end}"
            for name, (lso, end) in stable.items()
            if lso != end
        ),
    ]


def audit_producer_ids(owners: Iterable[tuple[int, str]]) -> list[str]:
    """`owners` are pairs of a producer id and who got it; an id must have one owner."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for producer_id, owner in owners:
        found[producer_id].add(owner)
    return [
        f"producer id {producer_id} belongs to {', '.join(sorted(names))}"
        for producer_id, names in sorted(found.items())
        if len(names) > 1
    ]


def audit_epochs(history: Iterable[tuple[str, int, int]]) -> list[str]:
    """Records of `__transaction_state` as (id, producer id, epoch): an epoch never falls."""
    last: dict[tuple[str, int], int] = {}
    problems = []
    for name, producer_id, epoch in history:
        before = last.get((name, producer_id), -1)
        if epoch < before:
            problems.append(f"{name}: producer {producer_id} fell from epoch {before} to {epoch}")
        last[name, producer_id] = epoch
    return _some(problems)


def audit_offsets(committed: Mapping[int, int], copied: Mapping[int, int]) -> list[str]:
    """`copied` has, per source partition, the offset after the last copy."""
    return [
        f"source-{partition} is copied up to {end}, its group stands at {committed.get(partition)}"
        for partition, end in copied.items()
        if committed.get(partition) != end
    ]


def audit_log(lines: Iterable[str]) -> list[str]:
    """Lines of all brokers and of the parent."""
    return _some([line.strip() for line in lines if COMPLAINTS.search(line)])


def _place(seen: Seen) -> str:
    return f"copies-{seen.partition}@{seen.offset}"


def _some(problems: list[str]) -> list[str]:
    if len(problems) <= SHOWN:
        return problems
    return [*problems[:SHOWN], f"... and {len(problems) - SHOWN} more like this"]
