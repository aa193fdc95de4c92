"""Words and numbers of the page."""

from autotune.service import wording
from tests.makers import configuration, result, trial


def test_the_users_own_settings_are_not_compared_with_themselves() -> None:
    kept = result([trial(0, 10.0, confirmed=10.0), trial(1, 5.0, of=configuration(16), confirmed=5.0)])
    assert wording.measured_speedup(kept.to_dict()) is None
    found = wording.measured_speedup(result().to_dict())
    assert found is not None
    assert found[1] < 4.0 < found[2]  # type: ignore[operator]


def test_a_speed_that_is_hardly_known_has_no_cost() -> None:
    speed = {"samples_per_second": 10.0, "samples_per_second_low": 9.0, "samples_per_second_high": 11.0}
    assert wording.cost_text(speed, (3.6, "EUR")) == "100.00 EUR"
    assert (
        wording.cost_text(speed | {"samples_per_second_low": 4.0, "samples_per_second_high": 16.0}, (3.6, "EUR")) == "–"
    )
    assert wording.cost_text(speed | {"samples_per_second_high": None}, (3.6, "EUR")) == "–"
    assert wording.cost_text(None, (3.6, "EUR")) == "–"
