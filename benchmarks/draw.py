"""Draw a table of docs/results as a bar chart.

    python -m benchmarks.draw docs/results/peers.md samples/s docs/pictures/peers.svg
    python -m benchmarks.draw docs/results/ranks.md median docs/pictures/ranks.svg --title ms

It draws the first table of the page that has this column; names are in the table's first column.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import List, Tuple
from xml.sax.saxutils import escape

from amp_xla.process import durable

ROW, BAR, LONGEST, LETTER = 30, 18, 400, 7  # pixels: row, bar, longest bar, letter
STYLE = """text { font: 13px system-ui, sans-serif; fill: #1f2328 } rect { fill: #8c959f }
.ours { fill: #0b5cad } @media (prefers-color-scheme: dark)
{ text { fill: #e6edf3 } rect { fill: #6e7681 } .ours { fill: #58a6ff } }"""


def read(page: Path, column: str) -> List[Tuple[str, float]]:
    """Return (name, value) of each row with a number in ``column``, in the first such table.

    Raises:
      SystemExit: no table of the page has numbers in this column.
    """
    rows: List[Tuple[str, float]] = []
    place = None
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            if rows:
                break
            place = None
        elif place is None:
            place = cells.index(column) if column in cells else -1
        elif place >= 0 and re.fullmatch(r"[\d.]+[x%]?", cells[place]):
            rows.append((cells[0].replace("`", ""), float(cells[place].rstrip("x%"))))
    if not rows:
        raise SystemExit(f"error: no table of {page} has numbers under {column!r}")
    return rows


def draw(rows: List[Tuple[str, float]], title: str) -> str:
    """Return an SVG image, in which bars of this project have another color."""
    height = ROW * (len(rows) + 1) + 8
    most = max(value for _, value in rows)
    left = LETTER * max(len(name) for name, _ in rows) + 10
    width = left + LONGEST + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}: {escape(', '.join(f'{n} {v:g}' for n, v in rows))}</title>",
        f"<style>{STYLE}</style>",
        f'<text x="{left}" y="20" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (name, value) in enumerate(rows, 1):
        top, length = number * ROW + 4, LONGEST * value / most
        ours = ' class="ours"' if name.startswith("amp_xla") else ""
        parts += [
            f'<text x="{left - 10}" y="{top + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect{ours} x="{left}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2"/>',
            f'<text x="{left + length + 8:.1f}" y="{top + 14}">{value:g}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="such as docs/results/peers.md")
    parser.add_argument("column", help="column with the lengths of the bars")
    parser.add_argument("out", type=Path, help="picture to write, .svg")
    parser.add_argument("--title", help="title of the picture (default: the column)")
    args = parser.parse_args()
    picture = draw(read(args.page, args.column), args.title or args.column)
    durable.replace(args.out, picture.encode())


if __name__ == "__main__":
    main()
