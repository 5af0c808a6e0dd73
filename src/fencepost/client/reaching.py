"""Finds a bootstrap server that answers, before the first request.

The calls of `calls.py` retry until their deadline, because a cluster may come back. A user at
a terminal wants to know at once that no server is there. So `reach` asks each server in
turn for ApiVersions, and gives up after one round if none of them accepts a connection. A server
that accepts connections and does not answer may be busy: while there is one, `reach` goes on until
the deadline, and waits twice as long in each round. The connection to the server that answered
stays open, and later requests avoid the servers that did not.
"""

from __future__ import annotations

from typing import Final

from fencepost.client.calls import FIRST_SETUP_MS, Attempt, Core
from fencepost.client.conversation import versions_request
from fencepost.client.failures import NoBrokerAnswers, RetriesExhausted
from fencepost.client.options import Endpoint
from fencepost.client.steps import Reply, Send, Steps, exchange
from fencepost.wire.apis import ApiKey

ONLY_SERVER_MS: Final = 2_500
"""How long the only server may take in the first round: one that is away is reported within three
seconds."""


def reach(core: Core) -> Steps[Endpoint]:
    """Returns a bootstrap server that has answered; NoBrokerAnswers says why none did."""
    servers = core.options.bootstrap
    attempt = Attempt(core, ApiKey.API_VERSIONS, "")
    patience_ms = FIRST_SETUP_MS if len(servers) > 1 else ONLY_SERVER_MS
    failures: dict[Endpoint, str] = {}
    one_accepts = False
    while True:
        for endpoint in servers:
            if attempt.left_ms <= 0:
                break
            timeout_ms = min(patience_ms, attempt.request_timeout_ms())
            send = Send(endpoint, ApiKey.API_VERSIONS, versions_request(), timeout_ms)
            answer = yield from exchange(send)
            if isinstance(answer, Reply):
                core.routes.trust(endpoint)
                return endpoint
            attempt.lost(endpoint, answer)
            failures[endpoint] = answer.reason
            one_accepts = one_accepts or answer.connected
        if not one_accepts:
            raise NoBrokerAnswers(_sentence("No broker can be reached", failures))
        try:
            yield from attempt.pause()
        except RetriesExhausted as problem:
            limit = f"No broker answered within {attempt.timeout_ms} ms"
            failed = NoBrokerAnswers(_sentence(limit, failures))
            failed.accepts = True
            raise failed from problem
        patience_ms *= 2


def _sentence(start: str, failures: dict[Endpoint, str]) -> str:
    return f"{start} ({'; '.join(f'{each}: {why}' for each, why in failures.items())})"
