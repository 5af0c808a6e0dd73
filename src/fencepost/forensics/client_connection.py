"""Whether the client that spoke for a transactional id is still connected to its coordinator.

A transactional producer talks to its coordinator, so the coordinator's own connections tell. Only
fencepost's does; on Apache Kafka, and after the coordinator was restarted or moved and has not
heard from the producer since, it is unknown. A client may close an idle connection and open a new
one later: "gone" is said of the connection, and is a hint that the process has ended, no proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fencepost.client.admin import TransactionView

_KNOWN: Final = frozenset({"connected", "gone"})


def connection_fields(view: TransactionView | None) -> dict[str, Any]:
    """The fields for JSON: null where it is not known."""
    is_known = view is not None and view.client_connection in _KNOWN
    return {
        "client_id": view.client_id if view is not None else None,
        "client_host": view.client_host if view is not None else None,
        "client_connection": view.client_connection if is_known and view is not None else None,
        "client_gone_at_ms": view.client_gone_at_ms if view is not None else None,
    }


def client_in_words(view: TransactionView | None) -> str | None:
    """The client id and host, as far as they are known."""
    if view is None or view.client_host is None:
        return None
    return " at ".join(filter(None, (view.client_id, view.client_host)))
