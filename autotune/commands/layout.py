"""Aligned tables and ratios as all commands write them."""

from collections.abc import Sequence

from autotune.core.interval import Interval


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Columns as wide as their widest cell: the first `left` and a last one of words to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        words_last = row[-1] != "-" and not row[-1][:1].isdigit()
        to_left = [place < left or (words_last and place == len(row) - 1) for place in range(len(row))]
        cells = [
            cell.ljust(width) if at_left else cell.rjust(width)
            for cell, width, at_left in zip(row, widths, to_left, strict=True)
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def ratio_text(ratio: Interval | None) -> str:
    """`1.31x (1.22 to 1.40)`, or a dash."""
    if ratio is None:
        return "-"
    return f"{ratio.value:.2f}x ({ratio.low:.2f} to {f'{ratio.high:.2f}' if ratio.high < 1e6 else 'inf'})"
