"""Words and numbers of the page."""

from autotune.service import wording
from tests.makers import configuration, result, trial


def test_the_users_own_settings_are_not_compared_with_themselves() -> None:
    kept = result([trial(0, 10.0, confirmed=10.0), trial(1, 5.0, of=configuration(16), confirmed=5.0)])
    assert wording.measured_speedup(kept.to_dict()) is None
    found = wording.measured_speedup(result().to_dict())
    assert found is not None
    assert found[1] < 4.0 < found[2]  # type: ignore[operator]
