"""A table of text, printed for a terminal, a page or a paper. Knows nothing of what is in it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

FORMATS = ("markdown", "latex", "csv")


@dataclass(frozen=True)
class Strong:
    """A cell that stands out; whoever sets one answers for its being significant."""

    text: str

    def __str__(self) -> str:
        return self.text


Cell = str | Strong


@dataclass(frozen=True)
class Table:
    """A caption, named columns and rows; the first `words` columns are words, the rest numbers."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""  # one or two sentences below the table
    words: int = 1
    strong: str = ""  # what it means that a cell stands out

    def text(self) -> str:
        """Return aligned lines for a terminal; what stands out has a star."""
        cells = [[f"{c}*" if isinstance(c, Strong) else str(c) for c in row] for row in self.rows]
        table = [list(self.columns), *cells]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if i < self.words else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in table
        ]
        lines.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
        note = self._note("*")
        return "\n".join([self.caption, *lines, *([note] if note else [])])

    def markdown(self) -> str:
        """Return a table for a README or a pull request."""
        header = [_markdown(c) for c in self.columns]
        rule = [":--" if i < self.words else "--:" for i in range(len(header))]
        body = [
            [f"**{_markdown(c.text)}**" if isinstance(c, Strong) else _markdown(c) for c in row]
            for row in self.rows
        ]
        lines = ["| " + " | ".join(row) + " |" for row in [header, rule, *body]]
        note = self._note("Bold")
        return "\n".join([f"**{self.caption}**", "", *lines, *(["", note] if note else [])])

    def latex(self) -> str:
        """Return a booktabs table for a paper."""
        layout = "".join("l" if i < self.words else "r" for i in range(len(self.columns)))
        body = [
            [rf"\textbf{{{_latex(c.text)}}}" if isinstance(c, Strong) else _latex(c) for c in row]
            for row in self.rows
        ]
        lines = [" & ".join(row) + r" \\" for row in body]
        note = self._note("Bold")
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{_latex(self.caption)}.}}",
                rf"\begin{{tabular}}{{{layout}}}",
                r"\toprule",
                " & ".join(_latex(c) for c in self.columns) + r" \\",
                r"\midrule",
                *lines,
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                *([f"% {note}"] if note else []),
            ]
        )

    def csv(self) -> str:
        """Return the cells for a spreadsheet, the caption as the first column of every row."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["table", *self.columns])
        writer.writerows([[self.caption, *map(str, row)] for row in self.rows])
        return text.getvalue().rstrip("\n")

    def html(self) -> str:
        """Return the table as a figure that scrolls by itself where the page is narrow."""

        def row(cells: Sequence[Cell], tag: str) -> str:
            parts = []
            for i, cell in enumerate(cells):
                name = "th" if i == 0 or tag == "th" else "td"
                scope = f' scope="{"col" if tag == "th" else "row"}"' if name == "th" else ""
                kind = ' class="word"' if i < self.words else ""
                content = escape(str(cell))
                if isinstance(cell, Strong):
                    content = f"<strong>{content}</strong>"
                parts.append(f"<{name}{scope}{kind}>{content}</{name}>")
            return f"<tr>{''.join(parts)}</tr>"

        body = "\n".join(row(cells, "td") for cells in self.rows)
        note = self._note("Bold")
        below = f'<p class="note">{escape(note)}</p>' if note else ""
        return (
            f'<figure class="table"><figcaption>{escape(self.caption)}</figcaption>'
            f'<div class="scroll" tabindex="0"><table><thead>{row(self.columns, "th")}</thead>'
            f"<tbody>\n{body}\n</tbody></table></div>{below}</figure>"
        )

    def _note(self, mark: str) -> str:
        """Return the note, with what the mark of a cell that stands out means if there is one."""
        marked = any(isinstance(cell, Strong) for row in self.rows for cell in row)
        return f"{self.note} {mark}: {self.strong}" if marked and self.strong else self.note

    def format(self, name: str) -> str:
        """Return the table in one of `FORMATS`."""
        formats = {"markdown": self.markdown, "latex": self.latex, "csv": self.csv}
        return formats[name]()


def _markdown(text: Cell) -> str:
    return str(text).replace("|", r"\|").replace("*", r"\*").replace("_", r"\_")


def _latex(text: Cell) -> str:
    replacements = {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "±": r"$\pm$", "×": r"$\times$", "–": "--", "<": r"$<$", ">": r"$>$",
    }  # fmt: skip
    return "".join(replacements.get(character, character) for character in str(text))
