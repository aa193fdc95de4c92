"""Figures that README and the documentation quote (figures.toml), each from the report of its measurement.

python docs/figures.py: writes them into the pages, and prints which reports are older than the code that they measured. A figure
is written as the page has it now: its decimals, digits or a word, bold or not.
"""

import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = tomllib.loads((ROOT / "docs" / "figures.toml").read_text(encoding="utf-8"))
NUMBER = r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?"
WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
WORDS += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"]
MADE = re.compile(r"^Made (\d{4}-\d\d-\d\d) at revision (\w+)\.$", re.MULTILINE)
"""In the head of a report: `made_line` of benchmarks/machine.py."""


def pattern(sentence: str, number: str = NUMBER) -> re.Pattern[str]:
    """Matches a sentence in one line or several: {name} is a number, bold or not, … anything within a cell or line."""
    literals = (re.escape(text).replace("…", r"[^|\n]*") for text in re.split(r"\{\w*\}", sentence))
    return re.compile(rf"\**({number})\**".join(re.sub(r"(?:\\ )+", r"\\s+", text) for text in literals))


def names(sentence: str) -> list[str]:
    return re.findall(r"\{(\w*)\}", sentence)


@dataclass(frozen=True)
class Report:
    """The text of a report, or a part of it."""

    text: str

    def part(self, heading: str) -> "Report":
        """The part below the heading of the second level that begins so."""
        return Report(self.text.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0])

    def every(self, sentence: str) -> list[list[Decimal]]:
        """The numbers of each place that has this sentence."""
        return [
            [Decimal(number.replace(",", "")) for number in match.groups()]
            for match in pattern(sentence).finditer(self.text)
        ]

    def column(self, sentence: str) -> list[Decimal]:
        """The last number of each place that has this sentence."""
        return [values[-1] for values in self.every(sentence)]

    def read(self, *sentences: str) -> dict[str, Decimal]:
        """The numbers of the first place that has each sentence, by their names there."""
        return {
            name: value
            for sentence in sentences
            for name, value in zip(names(sentence), self.every(sentence)[0], strict=True)
        }


Figures = dict[str, Decimal | int]


# What the reports say ---------------------------------------------------------------------------------------------


def promised(report: Report) -> Figures:
    answers = report.column("| {seed} | {micro}x… | {promised}x (")
    rest = report.column("| yours; … | … | {measured}x (")
    return {
        **report.read("holds the measured speed-up in {inside} of {shown} searches"),
        **report.read("above the interval in {above} and below in {below}.", "in size by {size}%"),
        **report.read("faster than the user's settings in {faster} of {of},"),
        **report.read("{kept} of {searches} searches kept the user's settings"),
        **report.read("| encoder-decoder, random tokens | 0 | … | … | {first}x ("),
        **report.read("({above_low}x to {above_high}x) | {above_got}x (…) | above |"),
        **report.read("({below_low}x to {below_high}x) | {below_got}x (…) | below |"),
        **{"answers": len(answers), "least": min(answers), "most": max(answers)},
        **{"rest_least": min(rest), "rest_most": max(rest)},
    }


def tutorial(report: Report) -> Figures:
    table = Report(report.text.replace("\\n", " "))
    return table.read('"before {before} ', '"after {after} ', "The search took {minutes} minutes")


def peers(report: Report) -> Figures:
    figures: Figures = {}
    finders = {"": "`autotune search`", "_defaults": "the Trainer's defaults,…", "_lightning": "Lightning's …"}
    finders |= {"_trainer": "the Trainer's `hyper…", "_tpe": "Optuna's …"}
    tasks = {"own": "gpt2-mini", "texts": "bert-mini", "causal": "llama-mini, causal", "images": "vit-mini"}
    for task, heading in (tasks | {"lora": "llama-mini, LoRA"}).items():
        for finder, cell in finders.items():
            row = f"| {cell} | … | … | … | {{speed}} ({{times}}x) | … | … | {{seconds}} |"
            for speed, times, seconds in report.part(heading).every(row):
                name = f"{task}{finder}".removeprefix("own_")
                figures |= {name: speed, f"{name}_x": times, f"{name}_s": seconds}
    own, tpe = (report.column(f"| {finders[name]} | … | … | … | … | … | … | {{}} |") for name in ("", "_tpe"))
    return {
        **figures,
        **report.read("| speed-up | {promised}x ({low} to {high}) | {got}x |"),
        **{"shortest": min(own), "longest": max(own), "tpe_shortest": min(tpe), "tpe_longest": max(tpe)},
        **{"own_minutes": own[0] / 60, "texts_minutes": own[1] / 60},
    }


def programs(report: Report) -> Figures:
    promises = report.every("| {}x ({low} to {high}), … | {got}x, …")
    inside = sum(low <= got <= high for _, low, high, got in promises)
    rows = report.text.count("\n| ") - 2
    return {"answers": len(promises), "inside": inside, "programs": rows}


def fidelity(report: Report) -> Figures:
    return {
        **report.read("Speed within 3 %: {close} of {cases}; median error {error}%"),
        **report.read("(even slices against odd ones) within 3 % in {halves}."),
        **report.read("lies in the promised interval in {inside}.", "Peak within 3 %: {peaks} of"),
    }


def stopping(report: Report) -> Figures:
    _, own, usual = zip(*report.every("\n| {steps} | {own}% | {usual}% |"), strict=True)
    figures = report.read("{recordings} recordings of {short} to {long} steps", "{fewer}% fewer timed steps")
    ((percent, searches),) = report.every("in {}% of {} simulated searches")
    return {
        **figures,
        **{"least": min(own), "most": max(own), "usual_least": min(usual), "usual_most": max(usual)},
        **{"good": percent * searches / 100, "searches": searches},
    }


def stream(report: Report) -> Figures:
    errors = report.part("Composed steps").every("| {seconds} s | {before}% | {after}% |")
    boost = report.column("| boost falls in ten seconds | … | {probe}% |")
    return {
        **{"right": sum(abs(after) <= 1 for _, _, after in errors), "trainings": len(errors)},
        **{"wrong": max(before for _, before, _ in errors), "boost_least": min(boost), "boost_most": max(boost)},
    }


def search_seconds(report: Report) -> Figures:
    times = report.column("| times as fast | 1 | {now} |")
    return dict(zip(("bert", "full", "lora", "sharded"), times, strict=True))


def v100_table(report: Report) -> Figures:
    tracing, peaks = report.every("| 112 configurations | {tracing} | {peaks} |")[0]
    return {
        **report.read("Mean error {mean}%, largest {largest}%", "softmax of today the mean error was {without} %"),
        **report.read("| batch of 4 | {start} |", "| 1 x 4 accumulation | {accumulation} |"),
        **report.read("| + checkpointing | {checkpointing} |"),
        **report.read("| 8-bit Adam, fp16, 1 x 4, checkpointing | {adam} |"),
        **report.read("| adafactor, fp16, 1 x 4, checkpointing | {adafactor} |"),
        **{"rows": len(report.every("| {measured} | {estimated} | {error}% |")), "seconds": tracing + peaks},
    }


def published_ranks(report: Report) -> Figures:
    parts = map(report.part, ("foundation-model", "AnswerDotAI", "QwenLM"))
    errors = [error for part in parts for error in part.column("| allocated | {measured} | {estimated} | {error}% |")]
    figures = report.read("| all of several ranks | {rows} | {mean}% | … | -{largest}% |")
    return {**figures, "allocated": len(errors), "close": sum(abs(error) <= 2 for error in errors)}


def rank_memory(report: Report) -> Figures:
    return report.read(
        "| 2 | {model} GiB | before | {two_before} GiB | {before_s} |",
        "| 2 | … | now | {two} GiB | {two_s} |",
        "| 4 | {half} GiB | before | {four_before} GiB |",
        "| 4 | … | now | {four} GiB | {four_s} |",
    )


def memory_limits(report: Report) -> Figures:
    unfit = len(report.every("| {limit} MiB | {probes} | {failed} | out of memory |"))
    return {**report.read("{failed} of {searches} searches ran out of memory"), "unfit": unfit}


def loaders(report: Report) -> Figures:
    figures = report.read(
        "sleeping: the search chose {chosen}, the exhaustive run's best is {best}.",
        "burning: the search chose {chosen_2}, the exhaustive run's best is {best_2}.",
    )
    right = (figures["chosen"] == figures["best"]) + (figures["chosen_2"] == figures["best_2"])
    return {**figures, "right": right}


def kills(report: Report) -> Figures:
    (one_device,), (two_devices,) = report.every(
        "| all | | {kills} | … | 0 | 0 | 0 | 0 |"
    )  # lost, repeated, left, study.db
    return {"one_device": one_device, "two_devices": two_devices, "kills": one_device + two_devices}


def service(report: Report) -> Figures:
    parts = {"standby": "A standby", "real": "Real probes", "sqlite": "SQLite, 500", "postgres": "PostgreSQL, 250"}
    figures: Figures = {
        name: sum(map(int, report.part(heading).column("| all | {kills} |"))) for name, heading in parts.items()
    }
    return {**figures, "kills": figures["sqlite"] + figures["postgres"]}


def start_latency(report: Report) -> Figures:
    return report.read("| {probes} | {median} ms |")


def decision_time(report: Report) -> Figures:
    medians = report.column("| {th}… to … | {median} |")
    return {**report.read("| first … | {first} |"), "least": min(medians), "most": max(medians)}


def gpu(report: Report) -> Figures:
    ((_, bert_minutes, bert_seconds),) = report.every("| {part} | bert | - | {minutes} min {seconds} s |")
    ((_, bf16_minutes, bf16_seconds),) = report.every("| {part} | bert-over-bf16 | - | {minutes} min {seconds} s |")
    return {
        **report.read("the Trainer's defaults | … | {speed}x ({low}x to {high}x) |"),
        **report.read("BERT-large: speed-up over bf16 alone | … | {bf16}x ({bf16_low}x to {bf16_high}x) |"),
        **report.read("promised {promised} samples/s, measured {measured} samples/s", "x, measured {plain}x"),
        **{"bert_s": 60 * bert_minutes + bert_seconds, "bf16_s": 60 * bf16_minutes + bf16_seconds},
    }


def page(report: Report) -> Figures:
    ((seconds, size),) = report.every("| 500 | … | {median} s | … | … | {size} bytes |")
    return {"seconds": seconds, "kilobytes": size / 1000}


READERS: dict[str, Callable[[Report], Figures]] = {path: globals()[Path(path).stem] for path in SOURCES}
"""Report -> its figures by their names."""


# What the pages say -----------------------------------------------------------------------------------------------


def as_written(value: Decimal | int, present: str) -> str:
    """The value in the form of the present figure."""
    if present.lower() in WORDS and value < len(WORDS):
        word = WORDS[int(value)]
        return word.capitalize() if present[0].isupper() else word
    decimals = len(present.partition(".")[2])
    rounded = Decimal(value).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    return f"{rounded:{'+' if present[0] in '+-' else ''}{',' if ',' in present else ''}}"


def renewed(text: str, sentence: str, figures: Figures) -> str:
    """A page's text with these figures in this sentence. Raises LookupError if it has no such sentence."""

    def renew(match: re.Match[str]) -> str:
        whole = match[0]
        for place, name in reversed([*enumerate(names(sentence), 1)]):
            begin, end = (at - match.start() for at in match.span(place))
            whole = whole[:begin] + as_written(figures[name], match[place]) + whole[end:]
        return whole

    number = rf"\b(?i:{'|'.join(WORDS)})\b|{NUMBER}"
    better, places = pattern(sentence, number).subn(renew, text)
    if not places:
        raise LookupError(sentence)
    return better


def quotes() -> Iterator[tuple[str, str, str, Figures]]:
    """(report, page, sentence, the report's figures)."""
    for path, entry in SOURCES.items():
        figures = READERS[path](Report((ROOT / path).read_text(encoding="utf-8")))
        for name, sentences in entry.items():
            for sentence in sentences if name != "code" else ():
                yield path, name, sentence, figures


def ages() -> Iterator[str]:
    """A line for each report of whose code 1% or more was written since.

    Raises CalledProcessError or OSError without git's history.
    """
    for path, entry in SOURCES.items():
        code = [f"autotune/{name}" for name in entry["code"]]
        for date, revision in MADE.findall((ROOT / path).read_text(encoding="utf-8")):
            added = sum(int(line.split("\t")[0]) for line in _git("diff", "--numstat", revision, "--", *code))
            lines = sum(int(line.rpartition(":")[2]) for line in _git("grep", "-c", "", "--", *code))
            if added * 100 >= lines:
                yield f"{path}, {date}: {min(added / lines, 1):.0%} of {', '.join(entry['code'])} is newer"


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def main() -> None:
    for path, page, sentence, figures in quotes():
        text = (ROOT / page).read_text(encoding="utf-8")
        try:
            better = renewed(text, sentence, figures)
        except LookupError:
            print(f"{page} has no such sentence any more. Change it there or in docs/figures.toml ({path}): {sentence}")
            continue
        if better != text:
            (ROOT / page).write_text(better, encoding="utf-8")
            print(f"{page}: {sentence}: from {path}")
    print(*ages(), sep="\n")


if __name__ == "__main__":
    main()
