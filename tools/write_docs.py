"""Writes the generated parts of docs/.

A generated part is between `<!-- generated: NAME -->` and `<!-- end of NAME -->`; the text around
it is written by hand and stays. `--check` writes nothing and fails if a part is out of date.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PLACES: Final = ("README.md", "docs/**/*.md")
PART: Final = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)

_ONE_COPY: Final = "there is one copy of every partition, in one folder"
_CONTROLLER: Final = "spoken between Kafka's controllers and brokers; fencepost has no such quorum"
_NO_TOKENS: Final = "there are no delegation tokens: users log in with their passwords"
_SHARE: Final = "share groups (KIP-932) are not built"
_STREAMS: Final = "streams groups (KIP-1071) are not built; Kafka Streams uses classic groups"
_NEW_GROUPS: Final = "the consumer protocol of KIP-848 is not built; clients use the classic one"

LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "create_delegation_token": _NO_TOKENS,
        "renew_delegation_token": _NO_TOKENS,
        "expire_delegation_token": _NO_TOKENS,
        "describe_delegation_token": _NO_TOKENS,
        "alter_client_quotas": "clients are not throttled: there are no quotas",
        "alter_replica_log_dirs": _ONE_COPY,
        "alter_partition": _CONTROLLER,
        "vote": _CONTROLLER,
        "begin_quorum_epoch": _CONTROLLER,
        "end_quorum_epoch": _CONTROLLER,
        "envelope": _CONTROLLER,
        "fetch_snapshot": _CONTROLLER,
        "broker_registration": _CONTROLLER,
        "broker_heartbeat": _CONTROLLER,
        "unregister_broker": "the brokers of a directory are those that it is started with",
        "allocate_producer_ids": _CONTROLLER,
        "controller_registration": _CONTROLLER,
        "assign_replicas_to_dirs": _CONTROLLER,
        "add_raft_voter": _CONTROLLER,
        "remove_raft_voter": _CONTROLLER,
        "update_raft_voter": _CONTROLLER,
        "update_features": "the feature levels are those of this version and do not change",
        "consumer_group_describe": _NEW_GROUPS,
        "get_telemetry_subscriptions": "metrics that clients push (KIP-714) are not collected",
        "push_telemetry": "metrics that clients push (KIP-714) are not collected",
        "share_group_describe": _SHARE,
        "share_fetch": _SHARE,
        "share_acknowledge": _SHARE,
        "initialize_share_group_state": _SHARE,
        "read_share_group_state": _SHARE,
        "write_share_group_state": _SHARE,
        "delete_share_group_state": _SHARE,
        "read_share_group_state_summary": _SHARE,
        "describe_share_group_offsets": _SHARE,
        "alter_share_group_offsets": _SHARE,
        "delete_share_group_offsets": _SHARE,
        "streams_group_heartbeat": _STREAMS,
        "streams_group_describe": _STREAMS,
    }
)
"""Why an API of Apache Kafka is not served; every unserved API must be here."""


def apis() -> Iterator[str]:
    """Every served API, from the table of handlers and their headers."""
    from fencepost.broker.handlers import HANDLERS
    from fencepost.wire.apis import API

    yield "| API | key | versions | what it does here | versions in words | errors |"
    yield "|---|---|---|---|---|---|"
    for key, module in sorted(HANDLERS.items()):
        api = API[key]
        header = _header(importlib.import_module(f"fencepost.broker.handlers.{module}").__doc__)
        shown = " | ".join(header.get(word, "") for word in ("Behaviour", "Versions", "Errors"))
        yield f"| {api.name} | {int(key)} | {api.min_version}-{api.max_version} | {shown} |"


def _header(docstring: str | None) -> dict[str, str]:
    """The parts of a handler's header, each on one line."""
    parts: dict[str, str] = {}
    word = ""
    for line in (docstring or "").splitlines()[1:]:
        started = re.match(r"(Behaviour|Versions|Errors):\s*(.*)", line)
        word = started[1] if started else word
        text = (started[2] if started else line).strip().replace("|", "\\|")
        if word:
            parts[word] = f"{parts.get(word, '')} {text}".strip()
    return parts


def errors() -> Iterator[str]:
    """Every error that a handler names, with its explanation."""
    from fencepost.broker.handlers import HANDLERS
    from fencepost.wire.apis import API
    from tools.error_reference import error_table, names_in

    found: dict[str, list[str]] = {}
    for key, module in sorted(HANDLERS.items()):
        header = _header(importlib.import_module(f"fencepost.broker.handlers.{module}").__doc__)
        for name in dict.fromkeys(names_in(header.get("Errors", ""))):
            found.setdefault(name, []).append(API[key].name)
    yield from error_table(found)


def cost() -> Iterator[str]:
    """The cost of exactly-once."""
    from tools.cost_table import cost_table

    yield from cost_table()


def expect_clients() -> Iterator[str]:
    """What client libraries reach, beside Apache Kafka."""
    from tools.expectations import CLIENTS, expectations

    yield from expectations(CLIENTS, "Apache Kafka 4.3")


def expect_spark() -> Iterator[str]:
    """What source and sink reach, beside Spark's own connector."""
    from tools.expectations import SPARK, expectations

    yield from expectations(SPARK, "Spark's own connector")


def expect_start() -> Iterator[str]:
    """What a start takes, beside Apache Kafka."""
    from tools.expectations import START, expectations

    yield from expectations(START, "Apache Kafka 4.3")


def left_out() -> Iterator[str]:
    """Every API of Apache Kafka that is not served, and why."""
    from kio.schema.index import api_key_map

    from fencepost.broker.handlers import HANDLERS

    served = {int(key) for key in HANDLERS}
    yield "| API | key | why not |"
    yield "|---|---|---|"
    for key, name in sorted(api_key_map.items()):
        if key not in served:
            title = "".join(word.capitalize() for word in name.split("_"))
            yield f"| {title} | {key} | {LEFT_OUT[name]} |"


def kips() -> Iterator[str]:
    """Kafka's improvement proposals, and whether they are implemented."""
    from tools.kip_matrix import matrix

    yield from matrix()


def broker_settings() -> Iterator[str]:
    """Every supported broker setting."""
    from fencepost.broker.settings.tables import BrokerSettings

    yield from _settings(BrokerSettings)


def topic_settings() -> Iterator[str]:
    """Every supported topic setting."""
    from fencepost.broker.settings.tables import TopicSettings

    yield from _settings(TopicSettings)


def _settings(table: type) -> Iterator[str]:
    from fencepost.broker.settings.kinds import settings_of

    yield "| setting | default | meaning | why the default is not Kafka's |"
    yield "|---|---|---|---|"
    for setting in settings_of(table):
        default = setting.show(setting.default)
        shown = "none" if default in (None, "") else f"`{default}`"
        yield f"| `{setting.name}` | {shown} | {setting.doc} | {setting.why_differs or ''} |"


def other_settings() -> Iterator[str]:
    """Settings of Kafka that have no effect here."""
    from fencepost.broker.settings.tables import IGNORED

    yield "| setting | why it does nothing |"
    yield "|---|---|"
    for name, why in sorted(IGNORED.items()):
        yield f"| `{name}` | {why} |"


def spark_states() -> Iterator[str]:
    """The life of a Spark batch."""
    from fencepost.spark.transaction.states import MOVES, State

    def named(state: State) -> str:
        return state.name.lower().replace("_", " ")

    yield "| state | meaning | next |"
    yield "|---|---|---|"
    for state in State:
        following = ", ".join(named(then) for then in State if then in MOVES[state])
        yield f"| {named(state)} | {state.value} | {following} |"


def sink_arguments() -> Iterator[str]:
    """Every argument of the Spark sink."""
    from fencepost.spark.doors.foreach_batch import TransactionalSink
    from fencepost.spark.settings import ARGUMENTS

    yield "| argument | default | meaning |"
    yield "|---|---|---|"
    parameters = inspect.signature(TransactionalSink).parameters
    for name, meaning in ARGUMENTS.items():
        default = parameters[name].default
        shown = "required" if default is inspect.Parameter.empty else f"`{default}`"
        yield f"| `{name}` | {shown} | {meaning} |"


def sink_options() -> Iterator[str]:
    """The Kafka options that only the Spark sink has, and those that it refuses."""
    from fencepost.spark.settings import REFUSED, SINK_OPTIONS

    yield "| option | default | meaning |"
    yield "|---|---|---|"
    for option in SINK_OPTIONS:
        yield f"| `kafka.{option.name}` | `{option.default}` | {option.meaning} |"
    for name, why in sorted(REFUSED.items()):
        yield f"| `kafka.{name}` | refused | {why} |"


def source_options() -> Iterator[str]:
    """Every option of the Spark source but the client's, and those that it refuses."""
    from fencepost.spark.source.option_table import KAFKA_OPTIONS, SOURCE_OPTIONS
    from fencepost.spark.source.options import REFUSED

    yield "| option | default | for | meaning |"
    yield "|---|---|---|---|"
    for option in (*KAFKA_OPTIONS[:1], *SOURCE_OPTIONS, *KAFKA_OPTIONS[1:]):
        stream, batch = (option.default_in(streaming=streaming) for streaming in (True, False))
        default = _shown(stream)
        if batch != stream:
            default += f" in streams, {_shown(batch)} in batches"
        yield f"| `{option.name}` | {default} | {option.scope.value} | {option.meaning} |"
    for name, instead in sorted(REFUSED.items()):
        yield f"| `kafka.{name}` | refused | both | {instead} |"


def format_options() -> Iterator[str]:
    """Every option of the writers of `format("fencepost")` but the Kafka ones."""
    from fencepost.spark.doors.options import WRITE_OPTIONS

    yield "| option | default | for | meaning |"
    yield "|---|---|---|---|"
    for option in WRITE_OPTIONS:
        default = _shown(option.default)
        yield f"| `{option.name}` | {default} | {option.scope.value} | {option.meaning} |"


def client_options() -> Iterator[str]:
    """Every option of fencepost's Kafka client."""
    from fencepost.client.options import list_options

    yield "| option | default | affects | meaning |"
    yield "|---|---|---|---|"
    for option in list_options():
        default = _shown(option.default)
        yield f"| `kafka.{option.name}` | {default} | {option.user.value} | {option.meaning} |"


def unused_options() -> Iterator[str]:
    """Options of Kafka's clients that are accepted but ignored."""
    from fencepost.client.options import UNUSED
    from fencepost.spark import settings
    from fencepost.spark.source import option_table, options

    own = {f"kafka.{option.name}" for option in settings.SINK_OPTIONS}
    own |= {option.name for option in option_table.KAFKA_OPTIONS}
    refused = {f"kafka.{name}" for name in settings.REFUSED.keys() & options.REFUSED.keys()}
    names = sorted({f"kafka.{name}" for name in UNUSED} - own - refused)
    yield ", ".join(f"`{name}`" for name in names) + "."


def connection_options() -> Iterator[str]:
    """The options of every command that talks to a cluster."""
    from tools.command_reference import connection_part

    yield from connection_part()


def _shown(default: str | None) -> str:
    return f"`{default}`" if default else ""


GENERATORS: Final[Mapping[str, Callable[[], Iterator[str]]]] = MappingProxyType(
    {
        "apis": apis,
        "cost": cost,
        "errors": errors,
        "kips": kips,
        "expect-clients": expect_clients,
        "expect-spark": expect_spark,
        "expect-start": expect_start,
        "left-out": left_out,
        "broker-settings": broker_settings,
        "topic-settings": topic_settings,
        "other-settings": other_settings,
        "spark-states": spark_states,
        "sink-arguments": sink_arguments,
        "sink-options": sink_options,
        "source-options": source_options,
        "format-options": format_options,
        "client-options": client_options,
        "unused-options": unused_options,
        "connection-options": connection_options,
    }
)


def rewritten(text: str) -> str:
    """The text with every generated part written again."""
    return PART.sub(lambda part: part[1] + "\n".join(_lines(part[2])) + "\n" + part[3], text)


def _lines(name: str) -> Iterator[str]:
    if name.startswith("command-"):
        from tools.command_reference import command_part

        return command_part(name.removeprefix("command-"))
    return GENERATORS[name]()


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for path in sorted(found for place in PLACES for found in ROOT.glob(place)):
        text = path.read_text()
        wanted = rewritten(text)
        if wanted != text:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(wanted)
    for name in stale:
        print(f"{name} is out of date: run make docs" if check else f"wrote {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
