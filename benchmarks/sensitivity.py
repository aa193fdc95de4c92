"""How much searches change with each number that decides something: replayed with it halved and doubled.

python benchmarks/sensitivity.py FILE [--constants RISKS …] [--tables …] [--budgets …] [--noises …]: searches into FILE, on two
cores, and reports/constants.md; what is in FILE is not searched again, so that a run can be cut. An hour.

The constants are those of judge/constants.py and sampler/constants.py, the tables those that train. The elements of a tuple are
scaled together. Of a share or probability above a half its distance from 1 is doubled and halved.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from threadpoolctl import threadpool_limits

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from machine import markdown, write_table  # noqa: E402
from replay import OURS, Case, Found, replayed  # noqa: E402

from autotune.judge import constants as of_judge  # noqa: E402
from autotune.sampler import constants as of_sampler  # noqa: E402

AS_IT_IS, FACTORS = "as it is", {"halved": 0.5, "doubled": 2.0}
TABLES = ("llama-192", "mixtral", "t5-wide", "gpt2-vocabulary")
NOTE = """
Searches with their trials and further measurements in the mean; seconds as a multiple of those of the searches with the constants
as they are. A constant with which no search differs decides nothing in these: what it is for (crashes, a baseline that does not
fit, several devices, other studies, large spaces) may not happen in them."""


@dataclass(frozen=True)
class Variant:
    """A search with one constant changed. change: a key of FACTORS, or AS_IT_IS with no name."""

    name: str
    change: str
    case: Case


def constants() -> Mapping[str, Any]:
    """Name of each constant -> its value."""
    known = {**vars(of_judge), **vars(of_sampler)}
    return {name: value for name, value in known.items() if name.isupper()}


def scaled(value: Any, factor: float) -> Any:
    """The constant by this factor. Numbers of things stay whole, and at least 1."""
    if isinstance(value, Mapping):
        return {key: scaled(part, factor) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [scaled(part, factor) for part in value]
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    if isinstance(value, int):
        return max(1, round(value * factor))
    return 1 - (1 - value) / factor if 0.5 < value < 1 else value * factor


@contextlib.contextmanager
def with_constant(name: str, value: Any) -> Iterator[None]:
    """This constant in every module of the product that has it; the tables' own machine stays as it is."""
    former = constants()[name]
    modules = [module for key, module in [*sys.modules.items()] if key.split(".")[0] == "autotune"]
    readers = [module for module in modules if vars(module).get(name) is former]
    for module in readers:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module in readers:
            setattr(module, name, former)


def searched(variant: Variant) -> Found:
    """Measurements and answer of a search with this constant."""
    with threadpool_limits(1), contextlib.ExitStack() as stack:
        if variant.change in FACTORS:
            value = scaled(constants()[variant.name], FACTORS[variant.change])
            stack.enter_context(with_constant(variant.name, value))
        return replace(replayed(variant.case), errors=[], stop="")  # texts name constants


def variants(names: Sequence[str], cases: Sequence[Case]) -> list[Variant]:
    """All searches to make, without those of a constant that scaling leaves as it is."""
    known = constants()
    changes = [(name, change) for name in names for change, factor in FACTORS.items()]
    changes = [(name, change) for name, change in changes if scaled(known[name], FACTORS[change]) != known[name]]
    return [Variant(name, change, case) for name, change in [("", AS_IT_IS), *changes] for case in cases]


def read(path: Path) -> dict[Variant, Found]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = {}
    for known in map(json.loads, lines):
        case = Case(**known["found"].pop("case"))
        found[Variant(known["name"], known["change"], case)] = Found(case, **known["found"])
    return found


def run(path: Path, wanted: Sequence[Variant]) -> None:
    """Make the searches that are not in the file yet."""
    finished = read(path)
    open_variants = [variant for variant in wanted if variant not in finished]
    # A first search in each process imports what searches import late, with the constants as they are.
    pool = ProcessPoolExecutor(2, initializer=replayed, initargs=(wanted[0].case,))
    with path.open("a", encoding="utf-8") as file, pool:
        for variant, found in zip(open_variants, pool.map(searched, open_variants), strict=True):
            file.write(json.dumps({"name": variant.name, "change": variant.change, "found": asdict(found)}) + "\n")
            file.flush()


def cells(found: Sequence[Found], before: Sequence[Found]) -> list[str]:
    """Means over searches, beside the same searches with the constants as they are."""
    return [
        f"{sum(one != other for one, other in zip(found, before, strict=True))}",
        f"{fmean(one.regret for one in found):.2%}",
        f"{fmean(one.trials for one in found):.1f}",
        f"{fmean(one.again for one in found):.1f}",
        f"{sum(one.wall for one in found) / sum(one.wall for one in before):.2f}",
    ]


def shown(value: Any) -> str:
    """A constant on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {shown(part)}" for key, part in value.items())
    return ", ".join(map(shown, value)) if isinstance(value, tuple) else f"{value:g}"


def table_of(found: Mapping[Variant, Found], names: Sequence[str], cases: Sequence[Case]) -> list[str]:
    """A line for each constant, as Markdown."""
    before = [found[Variant("", AS_IT_IS, case)] for case in cases]
    kinds = ("differ", "regret", "trials", "again", "seconds")
    head = ["constant", "value", *(f"{change}: {kind}" for change in FACTORS for kind in kinds)]
    rows = [["(none)", AS_IT_IS, *cells(before, before), *["–"] * len(kinds)]]
    for name in names:
        row = [f"`{name}`", shown(constants()[name])]
        for change in FACTORS:
            after = [found[variant] for case in cases if (variant := Variant(name, change, case)) in found]
            row += cells(after, before) if after else ["–"] * len(kinds)
        rows.append(row)
    return [f"{len(cases)} searches each; `differ`: how many of them differ at all.", "", *markdown(head, rows)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--constants", nargs="+", default=[*constants()])
    parser.add_argument("--tables", nargs="+", default=TABLES)
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.5, 1.0])
    parser.add_argument("--noises", nargs="+", type=float, default=[0.005, 0.05])
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "constants.md")
    args = parser.parse_args()
    of_searches = product(args.tables, args.budgets, args.noises)
    cases = [Case(table, share, OURS, 0, noise) for table, share, noise in of_searches]
    run(args.file, variants(args.constants, cases))
    lines = table_of(read(args.file), args.constants, cases)
    write_table(args.out, "Each constant halved and doubled", [*lines, *NOTE.splitlines()])


if __name__ == "__main__":
    main()
