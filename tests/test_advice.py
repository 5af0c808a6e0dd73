"""No sentence advises what would lose or repeat rows.

Goal: an argument that skips a comparison is never named without the check that the user must make
instead. Method: all sentences of the source that name such an argument are found; each has its
condition ("only if", "only then"), or is in a list here with the reason why following it is safe.
`spark/ledger/test_followed_advice.py` follows the advice of the ledger in real queries.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import fencepost

ROOT = Path(fencepost.__file__).parent
SKIPS_A_COMPARISON = re.compile(
    r"\b(?:adopt|may_skip|allow_empty_state|allowEmptyState|take_over|takeOver|mayWriteToSources"
    r'|may_write_to_sources)=(?:"|[Tt]rue)|failOnDataLoss (?:to|=) ?false|--force\b|ledger adopt`'
)
CONDITION = re.compile(r"\bonly (?:if|then)\b", re.IGNORECASE)

SAFE = {
    "the sink writes what is missing and continues": "the ledger says which topics are missing",
    "start with an empty checkpoint {} and pass take_over=": "the ledger compares the start; "
    "if it has no offsets, the sentence says with which row to start",
    "--force, which aborts it and fences the query": "an aborted transaction is repeated",
    "--force is for a partition": "it corrects the command, and nothing was done",
    "To go on without them, set failOnDataLoss to false": "the records are gone already",
    "set failOnDataLoss to false to read what is there": "the same",
    "or find the last batch in the topics, and `fencepost ledger adopt` records it": "it is the "
    "check",
}


def sentences(path: Path) -> Iterator[str]:
    """The texts of a module that are sentences, without its docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def advice() -> Iterator[tuple[str, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        for sentence in sentences(path):
            if sentence.count(" ") > 3 and SKIPS_A_COMPARISON.search(sentence):
                yield str(path.relative_to(ROOT)), sentence


def test_an_argument_that_skips_a_comparison_is_advised_with_its_condition_only() -> None:
    found = list(advice())
    for path, sentence in found:
        for match in SKIPS_A_COMPARISON.finditer(sentence):
            is_safe = any(part in sentence for part in SAFE)
            assert is_safe or CONDITION.search(sentence[: match.start()]), (path, sentence)
    for part in SAFE:
        assert any(part in sentence for _, sentence in found), f"no sentence has {part!r}"
