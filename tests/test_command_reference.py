"""The reference has a page for each command, with all its options, made from the command itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fencepost.cli.commands.serve import parser as serve_parser
from tests.cli.test_app import COMMANDS
from tools.command_reference import ALIASES, WITHOUT_PAGE, _prose, command_part, names
from tools.write_docs import rewritten

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference" / "commands"


@pytest.mark.parametrize("name", names())
def test_each_command_has_a_page_with_its_options(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    assert page.startswith(f"# fencepost {name}\n")
    assert f"<!-- generated: command-{name} -->" in page
    assert f"reference/commands/{name}.md" in (ROOT / "docs" / "command-line.md").read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_names_every_option_and_argument(command: str) -> None:
    name = command.split(maxsplit=1)[0]
    if name in WITHOUT_PAGE:
        return
    shared = (ROOT / "docs" / "command-line.md").read_text()
    page = (PAGES / f"{ALIASES.get(name, name)}.md").read_text()
    if command == "serve":
        shown = [each.option_strings[-1] for each in serve_parser().listed]
    else:
        shown = [
            each.opts[0] if each.param_type_name == "option" else each.metavar
            for each in COMMANDS[command].params
            if not getattr(each, "hidden", False)
        ]
    usage = command if name not in ALIASES else f"{ALIASES[name]} {command}"
    _, _, section = page.partition(f"\nfencepost {usage} [OPTIONS]")
    assert section
    section = section.partition("\n### ")[0]  # Not the options of the next command.
    if "#options-of-a-connection" in section:
        section += shared.partition("## Options of a connection")[2].partition("\n## ")[0]
    for word in set(shown) - {"--help"}:
        item = rf"^- `[^`]*{re.escape(word)}(?![\w-])"
        assert re.search(item, section, re.MULTILINE), word


def test_a_page_that_differs_from_its_command_is_written_again() -> None:
    page = (PAGES / "check.md").read_text()
    assert rewritten(page) == page
    assert rewritten(page.replace("- `--json`", "- `--xml`")) == page


def test_text_of_a_help_page_means_nothing_in_markdown() -> None:
    assert _prose("__a__ *b* <c> `__d__ *e*` [f]") == (r"\_\_a\_\_ \*b\* &lt;c> `__d__ *e*` \[f\]")


def test_options_are_lists_which_a_phone_can_show() -> None:
    for name in names():
        assert not any(line.startswith("|") for line in command_part(name))
