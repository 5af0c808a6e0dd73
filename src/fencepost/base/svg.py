"""SVG building blocks for the pictures of all rooms: background, text, lines, rectangles.

An `img` element shows the picture on pages of any colour, so it has its own background, and colours
for light and dark mode. Colours are classes: `paper` for the background, `grid`, `quiet` for text;
`sN` strokes and `fN` fills the N-th colour; `bad` is for errors. SVG cannot measure text, so
`text_width` estimates it generously, for the widest common font, before a label is placed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from xml.sax.saxutils import escape

FONT_SIZE: Final = 12
TITLE_SIZE: Final = 16
MARGIN: Final = 16
"""The margin of the picture."""

_LETTER: Final = 0.58
_BOLD_LETTER: Final = 0.64
"""The mean width of a letter, as a share of the font size."""

_FONTS: Final = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif'
_STYLE: Final = f"""
  text {{ font: {FONT_SIZE}px {_FONTS}; fill: #1f2328; }}
  .title {{ font-size: {TITLE_SIZE}px; font-weight: 600; }}
  .strong {{ font-weight: 600; }}
  .quiet {{ fill: #57606a; }}
  .paper {{ fill: #ffffff; stroke: #d0d7de; }}
  .shade {{ fill: #f0f2f5; }}
  .grid {{ stroke: #d8dee4; }}
  .line {{ fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round; }}
  .spread {{ stroke-width: 1.5; opacity: 0.6; }}
  .s0 {{ stroke: #0969da; }} .f0 {{ fill: #0969da; }}
  .s1 {{ stroke: #bc4c00; }} .f1 {{ fill: #bc4c00; }}
  .s2 {{ stroke: #1a7f37; }} .f2 {{ fill: #1a7f37; }}
  .f3 {{ fill: #6e7781; }}
  .bad {{ fill: #cf222e; }}
  .mark {{ stroke: #6e7781; stroke-width: 1.5; }}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: #e6edf3; }}
    .quiet {{ fill: #9198a1; }}
    .paper {{ fill: #0d1117; stroke: #30363d; }}
    .shade {{ fill: #1c2128; }}
    .grid {{ stroke: #2a313a; }}
    .s0 {{ stroke: #58a6ff; }} .f0 {{ fill: #58a6ff; }}
    .s1 {{ stroke: #f0883e; }} .f1 {{ fill: #f0883e; }}
    .s2 {{ stroke: #3fb950; }} .f2 {{ fill: #3fb950; }}
    .f3 {{ fill: #8b949e; }}
    .bad {{ fill: #ff7b72; }}
    .mark {{ stroke: #8b949e; }}
  }}
"""


def document(width: int, height: int, title: str, description: str, parts: Iterable[str]) -> str:
    """Returns the SVG document. Title and description are for screen readers."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f"<style>{_STYLE}</style>",
            (
                f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" '
                'rx="6"/>'
            ),
            *parts,
            "</svg>",
            "",
        ]
    )


def text(
    x: float,
    y: float,
    words: str,
    kind: str = "quiet",
    *,
    anchor: str = "start",
    turned: bool = False,
) -> str:
    """Returns text, anchored at its start, middle or end; `turned` draws it upwards."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    at = f'x="{x:.1f}" y="{y:.1f}"'
    return f'<text class="{kind}" {at} text-anchor="{anchor}"{turn}>{escape(words)}</text>'


def rule(kind: str, x1: float, y1: float, x2: float, y2: float, dashes: str = "none") -> str:
    """Returns a straight line."""
    dash = "" if dashes == "none" else f' stroke-dasharray="{dashes}"'
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{kind}" {ends}{dash}/>'


def rectangle(kind: str, x: float, y: float, width: float, height: float) -> str:
    """Returns a filled rectangle."""
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" {size}/>'


def text_width(words: str, *, size: int = FONT_SIZE, bold: bool = False) -> float:
    """Estimates the width of text, erring on the wide side."""
    return len(words) * size * (_BOLD_LETTER if bold else _LETTER)
