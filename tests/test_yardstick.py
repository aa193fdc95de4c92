"""Public autotuners on the recorded tables: the export, and the arithmetic of regret, without the rivals' packages."""

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import yardstick
from yardstick import Case, Curve, Point, Search, Task, task_of

A, B, C = Point(0, 10.0, 2.0), Point(1, 20.0, 3.0), Point(2, None, 1.0)
SPEEDS = [10.0, 20.0, None, 25.0]


@pytest.fixture(scope="module")
def task() -> Task:
    return task_of("llama-long", 0.5)


# Export ----------------------------------------------------------------------------------------------------------------


def test_a_table_comes_back_from_its_cache_file(task: Task, tmp_path: Path) -> None:
    yardstick.export(tmp_path, [task])
    entries = yardstick.read_cache((tmp_path / "llama-long-0.5.json").read_text(encoding="utf-8"))
    assert entries.keys() == task.by_values.keys()
    for values, (speed, seconds) in entries.items():
        point = task.by_values[values]
        assert speed == (point.speed and pytest.approx(point.speed))
        assert seconds == pytest.approx(point.seconds)


def test_what_does_not_fit_fails_and_takes_its_seconds(task: Task) -> None:
    cache = yardstick.kernel_tuner_cache(task)["cache"]
    failed = [entry for entry in cache.values() if entry["time"] == "RuntimeFailedConfig"]
    assert len(failed) == sum(peak > task.budget for peak in task.table.peaks.values()) == 40
    assert all(entry["benchmark_time"] > 0 for entry in failed)
    assert all(key == ",".join(str(entry[name]) for name in task.parameters) for key, entry in cache.items())


def test_the_t4_file_has_the_same_times_as_the_cache_file(task: Task, tmp_path: Path) -> None:
    yardstick.export(tmp_path, [task])
    results = json.loads((tmp_path / "llama-long-0.5_T4.json").read_text(encoding="utf-8"))["results"]
    cache = yardstick.kernel_tuner_cache(task)["cache"]
    for result in results:
        entry = cache[",".join(str(result["configuration"][name]) for name in task.parameters)]
        (measurement,) = result["measurements"]
        assert result["times"]["benchmark"] == pytest.approx(entry["benchmark_time"] / 1000)
        if entry["time"] == "RuntimeFailedConfig":
            assert (measurement["value"], result["invalidity"]) == (entry["time"], "runtime")
        else:
            assert measurement["value"] == pytest.approx(entry["time"])
            assert result["invalidity"] == "correct"


def test_a_search_comes_back_from_its_line() -> None:
    search = Search(Case("llama-long", 0.5, "random", 3), (A, C, Point(0, 11.0, 2.5, again=True)))
    assert Search.read(search.line()) == search
    failed = Search(Case("llama-long", 0.5, "smac", 3), error="IndexError('list index out of range')")
    assert Search.read(failed.line()) == failed


def test_an_error_of_a_rival_is_kept_and_one_of_ours_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(task: Task) -> list[Point]:
        raise IndexError("nothing left")

    monkeypatch.setattr(yardstick, "RIVALS", {"random": fails, yardstick.OURS: fails})
    assert yardstick.made(Case("llama-long", 0.5, "random", 0)).error == "IndexError('nothing left')"
    with pytest.raises(IndexError, match="nothing left"):
        yardstick.made(Case("llama-long", 0.5, yardstick.OURS, 0))


def test_each_table_budget_and_repeat_has_a_seed_of_its_own() -> None:
    seeds = [yardstick.seed_of(table, share, 0) for table in ("gpt2-tiny", "llama-long") for share in (0.5, 1.0)]
    assert seeds == [1874519462, 1410404093, 1728967540, 1554389039]
    assert len({*seeds, yardstick.seed_of("gpt2-tiny", 0.5, 1)}) == 5


# Regret ----------------------------------------------------------------------------------------------------------------


def test_the_regret_is_that_of_the_fastest_so_far_and_whole_until_something_fits() -> None:
    led = yardstick.leaders([C, A, B, A])
    assert led == [None, 0, 1, 1]
    assert yardstick.regrets(led, SPEEDS, 25.0) == pytest.approx([1.0, 0.6, 0.2, 0.2])


def test_the_leader_has_the_highest_mean_of_its_speeds() -> None:
    lucky, again = Point(0, 22.0, 2.0), Point(0, 10.0, 2.0, again=True)
    assert yardstick.leaders([B, lucky, again]) == [1, 0, 1]
    assert yardstick.regrets([1, 0, 1], SPEEDS, 25.0) == pytest.approx([0.2, 0.6, 0.2]), "by their true speeds"


def test_a_search_that_has_ended_keeps_its_answer() -> None:
    curve = [1.0, 0.6, 0.2]
    assert [yardstick.at_measurements(curve, count) for count in (0, 1, 3, 20)] == [1.0, 1.0, 0.2, 0.2]
    ends = [1.0, 3.0, 6.0]
    assert [yardstick.at_seconds(curve, ends, seconds) for seconds in (0.5, 3.0, 5.9, 6.0, 99.0)] == [
        1.0,
        0.6,
        0.6,
        0.2,
        0.2,
    ]


def test_measurements_until_the_regret_is_small_enough() -> None:
    assert yardstick.measurements_to([1.0, 0.6, 0.01, 0.0], 0.01) == 3
    assert yardstick.measurements_to([1.0, 0.6], 0.01) == math.inf


def test_repeats_that_are_free_take_no_time_and_correct_the_leader() -> None:
    lucky, again = Point(0, 22.0, 2.0), Point(0, 10.0, 4.0, again=True)
    whole, free = yardstick.with_free_repeats([Search(Case("llama-long", 0.5, "autotune", 0), (B, lucky, again, C))])
    assert yardstick.course(whole) == ([1, 0, 1, 1], [3.0, 2.0, 4.0, 1.0])
    assert yardstick.course(free) == ([1, 1, 1], [3.0, 2.0, 1.0])


def test_times_are_in_median_measurements(task: Task) -> None:
    fastest = max(task.points.values(), key=lambda point: point.speed or 0.0)
    failed = next(point for point in task.points.values() if point.speed is None)
    curve = Curve.of(Search(Case("llama-long", 0.5, "random", 0), (failed, fastest)))
    assert curve.regrets == [1.0, 0.0]
    end = (failed.seconds + fastest.seconds) / task.median_s
    assert [curve.at(units) for units in (end - 0.01, end + 0.01)] == [1.0, 0.0]


def test_the_score_sees_the_answer_until_the_end_and_the_slowest_where_nothing_fits(task: Task) -> None:
    failed = next(point for point in task.points.values() if point.speed is None)
    fastest = max(task.points.values(), key=lambda point: point.speed or 0.0)
    case, end_s = Case("llama-long", 0.5, "random", 0), 20 * task.median_s

    def times(*points: Point) -> list[object]:
        return [
            result["measurements"][0]["value"] for result in yardstick.scored_results(task, Search(case, points), end_s)
        ]

    assert times(failed, fastest)[:2] == ["RuntimeFailedConfig", 1000 / fastest.speed]
    assert set(times(failed, fastest)[1:]) == {1000 / fastest.speed}
    slowest = min(speed for speed in task.true_speeds if speed)
    assert set(times(failed)) == {1000 / slowest}


def test_numbers_in_a_row_are_one_range() -> None:
    assert yardstick.runs([1, 2, 3, 7, 9, 10]) == "1 to 3, 7, 9 to 10"


def test_ours_measures_by_the_real_loop_and_says_what_it_repeats(task: Task) -> None:
    points = yardstick.ours(task)
    new = [point.place for point in points if not point.again]
    assert new[0] == task.points[task.table.space.baseline].place
    assert len(new) == len(set(new)) <= yardstick.N_TRIALS
    assert {point.place for point in points} == set(new)
    assert all(
        point.speed == task.points[task.configurations[point.place]].speed for point in points if not point.again
    )
