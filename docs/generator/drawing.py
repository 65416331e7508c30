"""Boxes and arrows as SVG, which shows everywhere and needs no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

#: Colours for a light and a dark page; `live` and `over` are statuses, `place` is where something is kept.
_STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #24292f }
    .page { fill: #ffffff } .soft { fill: #57606a; font-size: 12px }
    rect { stroke-width: 1.2 } .live { fill: #ddf4ff; stroke: #0969da } .over { fill: #dafbe1; stroke: #1a7f37 }
    .bad { fill: #ffebe9; stroke: #cf222e }
    .place { fill: #fff8c5; stroke: #9a6700 } .step { fill: #f6f8fa; stroke: #57606a }
    path { fill: none; stroke: #57606a; stroke-width: 1.4 } .head { fill: #57606a; stroke: none }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .page { fill: #0d1117 } .soft { fill: #9198a1 }
      .live { fill: #0c2d6b; stroke: #58a6ff } .over { fill: #04260f; stroke: #3fb950 }
      .bad { fill: #490202; stroke: #f85149 }
      .place { fill: #341a00; stroke: #d29922 } .step { fill: #161b22; stroke: #9198a1 }
      path { stroke: #9198a1 } .head { fill: #9198a1 }
    }
"""
_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path class="head" d="M 0 0 L 8 4 L 0 8 z"/></marker></defs>'
)
_LINE = 17
Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A box by its middle.

    Attributes:
        kind: its class in the style.
    """

    x: float
    y: float
    text: str
    kind: str = "step"
    width: float = 120
    height: float = 36

    def svg(self) -> str:
        left, top = self.x - self.width / 2, self.y - self.height / 2
        size = f'width="{self.width:g}" height="{self.height:g}" rx="6"'
        return f'<rect class="{self.kind}" x="{left:g}" y="{top:g}" {size}/>\n{_text(self.text, self.x, self.y)}'


@dataclass(frozen=True)
class Arrow:
    """A line through some points, with a head at the last one.

    Attributes:
        at: the middle of the label.
    """

    points: Sequence[Point]
    label: str = ""
    at: Point = (0, 0)

    def svg(self) -> str:
        line = " L ".join(f"{x:g} {y:g}" for x, y in self.points)
        label = _text(self.label, *self.at, kind="soft") if self.label else ""
        return f'<path d="M {line}" marker-end="url(#head)"/>\n{label}'


@dataclass(frozen=True)
class Words:
    """Text without a box, by its middle."""

    x: float
    y: float
    text: str

    def svg(self) -> str:
        return _text(self.text, self.x, self.y, kind="soft")


@dataclass(frozen=True)
class Picture:
    """A drawing with what it shows in words, for those who do not see it."""

    title: str
    description: str
    width: int
    height: int
    parts: Sequence[Box | Arrow | Words]

    def svg(self) -> str:
        """The drawing as a file."""
        size = f'width="{self.width}" height="{self.height}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" {size} role="img"'
            ' aria-labelledby="title description">\n'
            f'<title id="title">{escape(self.title)}</title>\n'
            f'<desc id="description">{escape(self.description)}</desc>\n'
            f"<style>{_STYLE}</style>\n"
            f"{_HEAD}\n"
            f'<rect class="page" {size} rx="8"/>\n' + "".join(part.svg() for part in self.parts) + "</svg>\n"
        )


def _text(text: str, x: float, y: float, kind: str = "") -> str:
    """Lines around a middle."""
    lines = text.split("\n")
    top = y - _LINE * (len(lines) - 1) / 2 + 4.5
    chosen = f' class="{kind}"' if kind else ""
    return "".join(
        f'<text{chosen} x="{x:g}" y="{top + _LINE * number:g}" text-anchor="middle">{escape(line)}</text>\n'
        for number, line in enumerate(lines)
    )
