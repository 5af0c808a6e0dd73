"""What holds for each command, found by walking the app: options, help, names of values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import pytest
import typer
from typer.testing import CliRunner

import fencepost
from fencepost.cli.app import app
from fencepost.cli.commands.serve import parser as serve_parser
from fencepost.cli.connection import SERVERS_VARIABLE
from tests.cli.running import fencepost_command

WITHOUT_A_CLUSTER: Final = frozenset(
    {"serve", "bench", "dump", "check", "repair", "completion", "tap show", "demo", "outbox init"}
)
"""They read files, or start their own brokers: a variable must not send them to a cluster."""


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yields all commands and groups, and the app itself."""
    yield " ".join(path), command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*path, name))


PAGES: Final = dict(walk(typer.main.get_command(app)))
COMMANDS: Final = {
    name: command
    for name, command in PAGES.items()
    if name and (not hasattr(command, "commands") or command.invoke_without_command)
}
"""All commands, and groups that are commands themselves (`tap`)."""


def parameters(command: str) -> list[Any]:
    return [each for each in COMMANDS[command].params if not getattr(each, "hidden", False)]


@cache
def help_of(command: str) -> str:
    done = fencepost_command(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - WITHOUT_A_CLUSTER))
def test_the_cluster_is_named_by_an_option_a_letter_or_a_variable(command: str) -> None:
    shown = " ".join(help_of(command).split())
    assert re.search(r"-b, (--to, )?--bootstrap-servers HOST:PORT,... ", shown)
    assert f"env var: {SERVERS_VARIABLE}" in shown


@pytest.mark.parametrize("command", ["tap show", "demo"])
def test_a_command_that_may_do_without_a_cluster_ignores_the_variable(command: str) -> None:
    shown = help_of(command)
    assert "-b, --bootstrap-servers HOST:PORT" in shown
    assert SERVERS_VARIABLE not in shown


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_partitions_are_given_with_p(command: str) -> None:
    for each in parameters(command):
        is_partition = bool({"--partition", "--partitions"} & {*each.opts})
        assert ("-p" in each.opts) == is_partition


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_value_has_a_name_in_capitals(command: str) -> None:
    """FILE, N, TOPIC[:P], not the type in Python."""
    for each in parameters(command):
        if not getattr(each, "is_flag", False):
            assert re.fullmatch(r"[][A-Z:|,.=-]+", each.metavar), each.opts


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_has_no_types_of_python(command: str) -> None:
    shown = help_of(command)
    assert not re.search(r"<\w|\{|list\[", shown)
    usage, _, _ = shown.partition("\n\n")
    for each in COMMANDS[command].params:
        if each.param_type_name == "argument":
            dots = "..." if each.nargs != 1 else ""
            word = each.metavar if each.required else f"[{each.metavar}]"
            assert f" {word}{dots}" in " ".join(usage.split())


def test_serve_names_its_values_in_the_same_way() -> None:
    assert "{" not in serve_parser().format_help()


@pytest.mark.parametrize("name", ["produce", "consume"])
def test_an_alias_has_the_arguments_and_options_of_its_command(name: str) -> None:
    alias, long = (help_of(command) for command in (name, f"topic {name}"))
    assert alias.replace(f"fencepost {name}", f"fencepost topic {name}", 1) == long


@pytest.mark.parametrize("command", sorted(PAGES.keys() - {"bench"}))
def test_all_help_pages_have_the_same_layout(command: str) -> None:
    shown = help_of(command)
    assert shown.startswith(f"Usage: {f'fencepost {command}'.strip()} [OPTIONS]")
    assert "..." not in shown.partition("\nCommands:")[2], "a help text is cut off"
    assert re.search(r"^Options:$", shown, re.MULTILINE)
    is_group = "\nCommands:" in shown
    assert is_group or "\n  Example: " in shown or command == "serve"
    assert re.search(r"^  -h, --help +Show this message and exit\.$", shown, re.MULTILINE)


@pytest.mark.parametrize("command", ["", "txn", "txn list", "serve"])
def test_help_has_a_short_form(command: str) -> None:
    assert fencepost_command(*command.split(), "-h").stdout == help_of(command)


def test_an_interpreted_build_prints_only_its_version() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0
    assert shown.output == f"fencepost {fencepost.__version__}\n"
