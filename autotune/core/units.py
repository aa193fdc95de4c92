"""Sizes, shares, prices and durations from text and as text."""

import math
import re
import textwrap
from decimal import Decimal

_SIZES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "p": 1000**5}
_SIZES |= {f"{unit}i": 1024**power for power, unit in enumerate("kmgtp", start=1)}
_SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class NotReadable(ValueError):
    """A text that is not a quantity: why, and how to write it."""

    def __init__(self, cause: str, advice: str = "Check its size and unit.") -> None:
        super().__init__(cause, advice)
        self.cause, self.advice = cause, advice


def parse_bytes(text: str | int) -> int:
    """Bytes in `600MiB` (powers of 1024), `24 GB` (powers of 1000), `1.5g`, `629145600` or `1e9`; raises NotReadable."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e\+?[0-9]+)?)\s*([kmgtp]?i?)b?\s*", str(text).lower())
    if not match or match[2] not in _SIZES:
        raise NotReadable(f"{shortened(text)} is not a size", "Write it as 600MiB, 24GiB or a number of bytes.")
    size = float(match[1]) * _SIZES[match[2]]
    if not 1 <= size < math.inf:
        raise NotReadable(f"{shortened(text)} is not a positive size")
    return int(size)


def format_bytes(size: float | None) -> str:
    """`1.46 GiB` of 1568669286; a dash if the size is unknown."""
    if size is None:
        return "-"
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(len(units) - 1, int(math.log(max(1, abs(size)), 1024)))
    return f"{size / 1024**power:.{0 if power < 3 else 2}f} {units[power]}"


def format_parameters(count: float) -> str:
    """`85.1 million` of 85054464, `8.0 billion` of 8e9, `5,000 billion` of 5e12."""
    number, word = (count / 1e9, "billion") if count >= 1e9 else (count / 1e6, "million")
    return f"{number:,.{0 if number >= 1000 else 1}f} {word}"


def shortened(value: object, most: int = 40) -> str:
    """A value as a message shows it: of a long one the beginning."""
    text = repr(value) if not isinstance(value, int) or value.bit_length() < 1000 else "a number of hundreds of digits"
    return text if len(text) <= most else f"{text[:most]}…"


_QUANTITY = r"\d (?:%|h|min|s|ms|[KMGT]i?B|samples/s|tokens/s)(?: \d+ (?:min|s))?(?!\w)"

NO_BREAK = "\u00a0"


def broken(text: str, width: int, first: str = "", further: str = "", whole: str = _QUANTITY) -> list[str]:
    """The text as lines of at most this number of columns, broken between words.

    They are not broken within what the pattern `whole` finds, by default a number and its unit; NO_BREAK is a space at which
    no line ends. first, further: indentation of the first line and of others.
    """
    text = re.sub(whole, lambda match: match[0].replace(" ", NO_BREAK), text)
    lines = textwrap.TextWrapper(width, first, further, break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines.wrap(text)]


def parse_share(text: str | float) -> float:
    """The fraction in `5%`, `0.05` or 0.05; raises NotReadable unless 0 <= fraction < 1."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e-[0-9]+)?)\s*(%?)\s*", str(text))
    if not match:
        raise NotReadable(f"{shortened(text)} is not a share", "Write it as 5% or 0.05.")
    share = float(match[1]) / (100 if match[2] else 1)
    if share >= 1:
        raise NotReadable(f"a share of {text} leaves nothing", "Use less than 100%.")
    return share


def parse_seconds(text: str | float) -> float:
    """Seconds in `90`, `90s`, `10m` or `1.5h`; raises NotReadable if the text is not a positive duration."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*", str(text).lower())
    if not match or match[2] not in _SECONDS:
        raise NotReadable(f"{shortened(text)} is not a duration", "Write it as 90, 90s, 10m or 1.5h.")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds < math.inf:
        raise NotReadable(f"{shortened(text)} is not a positive duration")
    return seconds


def parse_price(text: str | float) -> tuple[float, str]:
    """(amount, currency or empty) of `2.50`, `2.50 EUR` or `$2.50`; raises NotReadable if the text is not a price."""
    sign = r"([^\W\d_]{0,3}[$€£¥₹₩₽₺₪]?)"
    match = re.fullmatch(rf"\s*{sign}\s*([0-9]*\.?[0-9]+)\s*{sign}\s*", str(text))
    if not match or (match[1] and match[3]):
        raise NotReadable(f"{text!r} is not a price", "Write it as 2.50 or 2.50EUR.")
    return float(match[2]), match[1] or match[3]


def format_seconds(seconds: float) -> str:
    """`12 s`, `3 min 20 s` or `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_duration(seconds: float | None) -> str:
    """`1.165 s`, `165.2 ms`, or a dash if it is unknown."""
    if seconds is None:
        return "-"
    return f"{seconds:.3f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def format_interval(value: float, low: float, high: float) -> str:
    """`41.2 ± 0.3`, with as many digits as the interval supports; `about 41` if half of it is wider than half the value."""
    half = (high - low) / 2
    if half > abs(value) / 2:
        return f"about {Decimal(f'{value:.2g}'):f}"
    digits = min(3, max(0, 1 - math.floor(math.log10(half)))) if half > 0 else 1
    return f"{value:.{digits}f} ± {half:.{digits}f}"


def counted(number: int, noun: str) -> str:
    """`1 trial`, `20 trials`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def three_digits(value: float) -> str:
    """Three significant digits, never an exponent."""
    return f"{Decimal(f'{value:#.3g}'):f}" if 0 < abs(value) < 100 else f"{value:.0f}"


def finite(number: float | None) -> float | None:
    """The number as JSON can hold it: None for infinity, the upper bound of a single step."""
    return float(number) if number is not None and math.isfinite(number) else None
