"""`fencepost pins`: the partitions whose last stable offset lags, and who holds them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.findings import Check, OneTopic, conclude
from fencepost.cli.limits import duration_option
from fencepost.cli.naming import require_topic
from fencepost.cli.output import COMMAND_INDENT, Output, in_words, output
from fencepost.cli.units import connection_in_words, counted

if TYPE_CHECKING:
    from fencepost.forensics.pins import Pin, Pins, Unread

COLUMNS: Final = ("partition", "hidden", "for_ms", "kind", "held_by", "ends_within_ms")
CAN_GO: Final = ("ends_within_ms", "hidden", "for_ms")
_MAX_NOTES: Final = 10


@connected
def pins(
    connection: Connection,
    topic: OneTopic = None,
    older_than: Annotated[
        int | None,
        duration_option("Only partitions that have been pinned for longer, such as 10s or 5m."),
    ] = None,
    check: Check = False,
    as_json: AsJson = False,
) -> None:
    """Show partitions whose last stable offset lags, and the transactions that hold them.

    Readers of committed records stop there. Internal topics are included. What can be done is
    printed below the table.

    Example: fencepost pins orders --older-than 10s
    """
    from fencepost.forensics.pins import find_pins

    with connection.look() as cluster:
        if topic is not None:
            require_topic(cluster, topic)
        found = find_pins(cluster, topic)
    late = [
        pin
        for pin in found.found
        if older_than is None
        or pin.pinned_for_ms.value is None
        or pin.pinned_for_ms.value > older_than
    ]
    shown = output(as_json)
    if as_json:
        rows = [_row(pin, connection.arguments) for pin in late]
        shown.table([*rows, *map(_unread_row, found.unread)], [], "")
    else:
        _print(shown, late, found, connection.arguments)
    conclude(found.missing, found=bool(late), check=check)


def _print(shown: Output, late: list[Pin], found: Pins, arguments: tuple[str, ...]) -> None:
    read = found.partitions - len(found.unread)
    empty = f"No partition is pinned ({read} looked at)."
    shown.table([_short_row(pin) for pin in late], COLUMNS, empty, CAN_GO)
    holders: dict[Any, list[Pin]] = defaultdict(list)
    for pin in late:
        holders[_holder_key(pin)].append(pin)
    for held in list(holders.values())[:_MAX_NOTES]:
        shown.note("")
        shown.note(_note(held, arguments))
    if len(holders) > _MAX_NOTES:
        shown.note(f"\n... and {len(holders) - _MAX_NOTES} more: --json has all of them.")
    for reason, count in Counter(each.reason for each in found.unread).items():
        shown.note(f"\n{counted(count, 'partition')} could not be read: {reason}.")


def _short_row(pin: Pin) -> dict[str, Any]:
    return {
        "partition": str(pin.partition),
        "hidden": pin.hidden_offsets,
        "for_ms": pin.pinned_for_ms,
        "kind": pin.kind,
        "held_by": pin.held_by,
        "ends_within_ms": pin.ends_in_at_most_ms if _can_time_out(pin) else None,
    }


def _can_time_out(pin: Pin) -> bool:
    return pin.ends_in_at_most_ms.value is not None


def _holder_key(pin: Pin) -> Any:
    if pin.holder is None:
        return pin.kind, pin.why
    if pin.kind == "hanging":
        return pin.partition  # Each has its own command.
    return pin.kind, pin.holder.producer.producer_id


def _note(pins: list[Pin], arguments: tuple[str, ...]) -> str:
    """What one holder holds, until when, and what to do."""
    pin = pins[0]
    where = str(pin.partition) if len(pins) == 1 else counted(len(pins), "partition")
    holds = f"{pin.held_by}{_who(pin)} holds {where}" if pin.holder else where
    lines = [f"{holds}: {pin.why}."]
    lines += [f"  {sentence}" for sentence in _consequences(pins)]
    lines.append(f"  To do: {pin.advice}" + (":" if pin.command else "."))
    if pin.command:
        lines.append(f"{COMMAND_INDENT}{_command(pin, arguments)}")
    return "\n".join(lines)


def _who(pin: Pin) -> str:
    assert pin.holder is not None
    producer, view = pin.holder.producer, pin.holder.view
    words = [f"epoch {producer.producer_epoch}"]
    if pin.holder.transaction is not None:
        words.insert(0, f"producer {producer.producer_id}")
    if view is not None and view.client_host is not None and pin.kind != "hanging":
        words.append(f"client {view.client_id!r} at {view.client_host}")
        words.append(connection_in_words(view))
    return f" ({', '.join(words)})"


def _consequences(pins: list[Pin]) -> list[str]:
    pin = pins[0]
    sentences = []
    if _can_time_out(pin):
        least = in_words("_ms", pin.ends_in_at_least_ms)
        most = in_words("_ms", pin.ends_in_at_most_ms)
        sentences.append(f"Its timeout ends it in {least} to {most}.")
    if len(pins) == 1 and pin.next_last_stable_offset.value is not None:
        after = in_words("", pin.next_last_stable_offset)
        sentences.append(f"When it ends, the last stable offset moves to {after}.")
    if any(each.compaction_waits.value for each in pins):
        sentences.append("Compaction waits, too.")
    return sentences


def _command(pin: Pin, arguments: tuple[str, ...]) -> str | None:
    return pin.command.text(arguments) if pin.command is not None else None


def _row(pin: Pin, arguments: tuple[str, ...]) -> dict[str, Any]:
    """All fields for JSON."""
    from fencepost.forensics.client_connection import connection_fields

    holder, view = pin.holder, pin.holder.view if pin.holder else None
    transaction = holder.transaction if holder else None
    return {
        "topic": pin.partition.topic,
        "partition": pin.partition.partition,
        "kind": pin.kind,
        "why": pin.why,
        "log_start_offset": pin.ends.log_start,
        "last_stable_offset": pin.ends.last_stable_offset,
        "high_watermark": pin.ends.high_watermark,
        "hidden_offsets": pin.hidden_offsets,
        "pinned_for_ms": pin.pinned_for_ms,
        "leader": pin.leader,
        "transactional_id": transaction.transactional_id if transaction else None,
        "state": view.state if view else None,
        "coordinator": transaction.coordinator if transaction else None,
        "producer_id": holder.producer.producer_id if holder else None,
        "producer_epoch": holder.producer.producer_epoch if holder else None,
        "open_producers": pin.open_producers,
        "started_at_ms": pin.started_at_ms,
        "last_written_at_ms": pin.last_written_at_ms,
        "timeout_ms": view.timeout_ms if view else None,
        "ends_in_at_least_ms": pin.ends_in_at_least_ms,
        "ends_in_at_most_ms": pin.ends_in_at_most_ms,
        "next_last_stable_offset": pin.next_last_stable_offset,
        "compaction_waits": pin.compaction_waits,
        **connection_fields(None if pin.kind == "hanging" else view),
        "advice": pin.advice,
        "command": _command(pin, arguments),
    }


def _unread_row(unread: Unread) -> dict[str, Any]:
    return {
        "topic": unread.partition.topic,
        "partition": unread.partition.partition,
        "kind": "cannot tell",
        "why": unread.reason,
    }
