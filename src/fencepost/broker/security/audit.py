"""The audit log: what was denied to whom, and who has changed whose rights.

    User:alice at 10.0.0.7 was denied WRITE on TOPIC:orders (Produce): denied: no rule that ...

One line each, from the logger `fencepost.audit`; with `--log-format json` the fields have names.
What a reply leaves out silently is not logged. A client that is denied many times a second has
`LINES_PER_SECOND` lines, and its others are counted (`event_log.py`).

Names come from clients: what cannot be printed is escaped, so that nobody writes lines of their
own, and long names are cut.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.broker.event_log import EventLog
from fencepost.broker.log_format import escaped
from fencepost.broker.security.authorizer import policy_of
from fencepost.coordinator.acl.decide import Question, decide
from fencepost.coordinator.acl.rules import Operation, ResourceType
from fencepost.wire.apis import API

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.broker.context import Context
    from fencepost.broker.runtime import Timers
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.coordinator.acl.state import AclState

log = logging.getLogger("fencepost.audit")

LONGEST: Final = 255
"""Characters of a name in a line."""


class Denial(NamedTuple):
    """Something that a client asked for and may not do."""

    principal: str
    operation: str
    """As in ACLs, such as WRITE."""
    resource_type: str
    resource_name: str
    api: str
    """The request by Kafka's name."""
    host: str


class Audit:
    """The audit log of one broker."""

    def __init__(self, timers: Timers, config: BrokerConfig, acls: AclState) -> None:
        self._events: Final = EventLog(timers, log)
        self._config: Final = config
        self._acls: Final = acls
        self.on_denied: Callable[[Denial], None] | None = None
        """Gets every denial, logged or not; for the test kit."""

    def denied(self, context: Context, operation: str, resource_type: str, name: str) -> None:
        """A client asked for what it may not do."""
        if self.on_denied is not None:
            asked = "" if context.api is None else API[context.api].name
            host = context.client_host
            self.on_denied(Denial(context.principal, operation, resource_type, name, asked, host))
        if not log.isEnabledFor(logging.INFO):
            return
        who = _who(context)
        question = Question(
            context.principal,
            context.client_host,
            Operation[operation],
            ResourceType[resource_type],
            name,
        )
        verdict = decide(self._acls, policy_of(self._config), question)
        name = printable(name)
        api = who["api"]
        self._events.note(
            "authorization_denied",
            f"{who['principal']} at {who['host']} was denied {operation} on {resource_type}:{name} "
            f"({api}): {printable(str(verdict))}",
            {
                **who,
                "operation": operation,
                "resource_type": resource_type,
                "resource_name": name,
                "rule": None if verdict.rule is None else printable(str(verdict.rule)),
                "why": verdict.why.name,
            },
            of=f"{who['principal']} at {who['host']}",
        )

    def changed(self, context: Context, event: str, what: str, **fields: object) -> None:
        """A client has changed something that matters for security; never left out."""
        if not self._config.authorizer_class_name:
            return
        who = _who(context)
        log.info(
            "%s at %s %s",
            who["principal"],
            who["host"],
            printable(what),
            extra={"event": event, **who, **fields},
        )


def _who(context: Context) -> dict[str, object]:
    return {
        "principal": printable(context.principal),
        "host": context.client_host,
        "listener": context.listener,
        "client_id": printable(context.client_id or ""),
        "api": "" if context.api is None else API[context.api].name,
    }


def printable(text: str) -> str:
    """A text of a client's as a part of one line."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}..."
    return escaped(text)
