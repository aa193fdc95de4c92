"""Sizes, shares and durations as people write them."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from autotune.core.units import (
    format_bytes,
    format_duration,
    format_interval,
    format_parameters,
    format_seconds,
    parse_bytes,
    parse_price,
    parse_seconds,
    parse_share,
    shortened,
    three_digits,
)

READ: list[tuple[Callable[[Any], Any], dict[Any, Any]]] = [
    (parse_bytes, {"600mib": 600 * 2**20, "24 GB": 24 * 10**9, "24G": 24 * 10**9, "1.5GiB": 3 * 2**29, ".5k": 500}),
    (parse_bytes, {"1B": 1, 629145600: 629145600, "1e9": 10**9, "2.5E+3 KiB": 2500 * 2**10, " 2 TiB ": 2 * 2**40}),
    (parse_share, {"5%": 0.05, "0.05": 0.05, 0.05: 0.05, 0: 0.0, "0%": 0.0, "99.9 %": 0.999, 1e-5: 1e-5}),
    (parse_seconds, {"90": 90, 90: 90, 0.5: 0.5, "90s": 90, "10m": 600, "10min": 600, "1.5h": 5400}),
    (parse_seconds, {"20 sec": 20, "2d": 172_800}),
    (parse_price, {"2.50": (2.5, ""), 2: (2.0, ""), "2.50EUR": (2.5, "EUR"), " 2 eur ": (2.0, "eur"), "0": (0.0, "")}),
    (parse_price, {"$.75": (0.75, "$"), "CHF 3": (3.0, "CHF"), "3 €": (3.0, "€"), "US$4": (4.0, "US$")}),
]
REFUSED: list[tuple[Callable[[Any], Any], str, tuple[Any, ...]]] = [
    (
        parse_bytes,
        "size",
        ("", "much", "0", "-1GiB", "0.1B", "1e", "5.", "600 Mi B", "1iB", "1EiB", "nan", None, "9" * 400),
    ),
    (parse_share, "share", ("100%", "1", 1.0, 5, "-5%", "five", "", "5%%", "nan", math.inf, math.nan, None, -0.1)),
    (parse_seconds, "duration", ("0", "-1", "soon", "", "5ms", "1:30", "9" * 400, math.inf, math.nan, None)),
    (parse_price, "price", ("", "free", "-1", "1e3", "2,50", "1.2.3", "$2 EUR", "2 EUR/h", "nan", None, True, "=2")),
]


@pytest.mark.parametrize(
    ("parse", "text", "value"), [(parse, *item) for parse, texts in READ for item in texts.items()]
)
def test_a_quantity_is_read_as_people_write_it(parse: Callable[[Any], Any], text: Any, value: Any) -> None:
    assert parse(text) == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize(("parse", "name", "text"), [(*row[:2], text) for row in REFUSED for text in row[2]])
def test_what_is_no_such_quantity_is_refused(parse: Callable[[Any], Any], name: str, text: Any) -> None:
    with pytest.raises(ValueError, match=name):
        parse(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0.0 million"), (85_054_464, "85.1 million"), (8.03e9, "8.0 billion"), (5_000_000_756_000, "5,000 billion")],
)
def test_parameters_are_counted_as_people_do(count: float, text: str) -> None:
    assert format_parameters(count) == text


def test_a_long_value_is_shortened_in_a_message_and_a_short_one_is_not() -> None:
    assert shortened("many") == "'many'"
    assert shortened(0) == "0"
    assert len(shortened("x" * 5000)) <= 41
    assert len(shortened(10**5000)) <= 41


def test_a_size_written_and_read_again_is_within_its_last_digit() -> None:
    draw = random.Random(0)
    for _ in range(500):
        size = int(2 ** draw.uniform(0, 49))
        written = format_bytes(size)
        unit = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(written.split()[1])
        assert abs(parse_bytes(written) - size) <= unit * (0.5 if unit < 2**30 else 0.005) + 1, written


def test_whole_units_are_written_as_such() -> None:
    assert [format_bytes(1024**power) for power in range(5)] == ["1 B", "1 KiB", "1 MiB", "1.00 GiB", "1.00 TiB"]
    assert format_bytes(1568669286) == "1.46 GiB"
    assert format_bytes(0) == "0 B"
    assert format_bytes(None) == "-"


def test_durations_are_written_in_the_unit_that_fits() -> None:
    texts = {0: "0 s", 12.4: "12 s", 59.7: "1 min 0 s", 200: "3 min 20 s", 3599.6: "1 h 0 min", 7500: "2 h 5 min"}
    assert {seconds: format_seconds(seconds) for seconds in texts} == texts


def test_what_was_timed_is_written_in_milliseconds_below_a_second() -> None:
    texts = {None: "-", 0.0004: "0.4 ms", 0.21: "210.0 ms", 0.9994: "999.4 ms", 1.165: "1.165 s", 75: "75.000 s"}
    assert {seconds: format_duration(seconds) for seconds in texts} == texts


def test_an_interval_is_written_with_the_digits_that_it_supports() -> None:
    assert format_interval(41.234, 40.93, 41.54) == "41.23 ± 0.30"
    assert format_interval(41.234, 31, 51) == "41 ± 10"
    assert format_interval(1234.5, 1000, 1469) == "1234 ± 234"
    assert format_interval(0.12345, 0.12344, 0.12346) == "0.123 ± 0.000"
    assert format_interval(41.234, 41.234, 41.234) == "41.2 ± 0.0"
    assert format_interval(41.234, 20.7, 61.8) == "41 ± 21"
    assert format_interval(41.234, 20.5, 62.0) == "about 41", "a half-width above half the value is no ±"
    assert format_interval(41.234, 0.0, math.inf) == "about 41"
    assert format_interval(3.84, -2.0, 9.6) == "about 3.8"
    assert format_interval(1234.5, 0.0, 2469.0) == "about 1200"
    assert format_interval(0.062, 0.0, 0.15) == "about 0.062"


def test_three_digits_of_a_number_count_and_none_is_an_exponent() -> None:
    texts = {
        **{0: "0", 0.0000123: "0.0000123", 0.01234: "0.0123", 1.0: "1.00", 5.5: "5.50", 9.996: "10.0", 17: "17.0"},
        **{54.19: "54.2", 99.96: "100", 123.4: "123", 1234.56: "1235", 123456.7: "123457", math.inf: "inf"},
    }
    assert {value: three_digits(value) for value in texts} == texts
