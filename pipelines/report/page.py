"""A page that stands alone: one HTML file, no script, nothing fetched, fit for phones and paper."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from learn2branch.errors import InputError
from learn2branch.runs import replace_file
from pipelines.report.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart by colour-blind readers and in grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)), (0, (3, 3)))

_STYLE = (Path(__file__).parent / "page.css").read_text()


@dataclass(frozen=True)
class Picture:
    """A drawing with a sentence below it and words for those who cannot see it.

    Drawn about 4.6 inches wide its letters can be read on a phone, and two stand side by side on
    a larger screen.
    """

    figure: Figure
    caption: str
    alternative: str

    def html(self) -> str:
        """Return the picture, drawn into the page itself."""
        return (
            f'<figure class="picture"><img src="data:image/svg+xml;base64,{_svg(self.figure)}" '
            f'alt="{escape(self.alternative)}"><figcaption>{escape(self.caption)}</figcaption>'
            "</figure>"
        )

    def write(self, path: Path) -> None:
        """Write the drawing alone, in the format that the file's name tells."""
        if path.suffix not in (kinds := (".svg", ".png", ".pdf")):
            raise InputError(f"{path} is none of {', '.join(kinds)}: choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, _drawn(self.figure, path.suffix[1:]))


@dataclass(frozen=True)
class Gallery:
    """Pictures side by side, as many as fit."""

    pictures: Sequence[Picture]

    def html(self) -> str:
        """Return the pictures in a grid."""
        return f'<div class="gallery">{"".join(picture.html() for picture in self.pictures)}</div>'


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str

    def html(self) -> str:
        """Return the paragraph."""
        return f"<p>{escape(self.text)}</p>"


@dataclass(frozen=True)
class Notice:
    """Something a reader must not miss: "error" (results are wrong) or "warning"."""

    kind: str
    text: str

    def html(self) -> str:
        """Return the notice as a box."""
        return f'<p class="notice {self.kind}" role="alert">{escape(self.text)}</p>'


@dataclass(frozen=True)
class Facts:
    """Names and what they stand for, as a list."""

    facts: Sequence[tuple[str, str]]

    def html(self) -> str:
        """Return the list."""
        items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(v)}</dd>" for name, v in self.facts)
        return f"<dl>{items}</dl>"


@dataclass(frozen=True)
class Folded:
    """Something long that opens when asked for, and is left out on paper."""

    title: str
    part: Table

    def html(self) -> str:
        """Return the part, closed."""
        title = escape(self.title)
        return f"<details><summary>{title}</summary>{self.part.html()}</details>"


Part = Table | Gallery | Text | Notice | Facts | Folded


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    parts: Sequence[Part]

    @property
    def anchor(self) -> str:
        """The name that links to it use."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    lead: Sequence[Part]  # before the first heading: what came out, and what to beware of
    sections: Sequence[Section] = field(default_factory=tuple)

    def html(self) -> str:
        """Return the file's content."""
        links = "".join(f'<a href="#{s.anchor}">{escape(s.title)}</a>' for s in self.sections)
        sections = "\n".join(
            f'<section id="{s.anchor}"><h2>{escape(s.title)}</h2>\n'
            + "\n".join(part.html() for part in s.parts)
            + "\n</section>"
            for s in self.sections
        )
        # The policy forbids the page to load or run anything, so it is what it was when written.
        return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(self.title)}</title>
<style>
{_STYLE}</style>
</head>
<body>
<main>
<header><h1>{escape(self.title)}</h1>
{chr(10).join(part.html() for part in self.lead)}
<nav>{links}</nav></header>
{sections}
</main>
</body>
</html>
"""


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def _svg(figure: Figure) -> str:
    return base64.b64encode(_drawn(figure, "svg")).decode()


def _drawn(figure: Figure, kind: str) -> bytes:
    import matplotlib

    buffer = io.BytesIO()
    # The same numbers give the same file: no date, no random names.
    undated = {"CreationDate": None} if kind == "pdf" else {"Date": None} if kind == "svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": "learn2branch", "svg.fonttype": "path"}):
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Creator": None, **undated})
    return buffer.getvalue()
