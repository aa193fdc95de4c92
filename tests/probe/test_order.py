"""Files that are written whole or not at all."""

from pathlib import Path

from autotune.core import write_json
from autotune.study.store import locked


def test_what_a_killed_writer_left_half_goes_when_the_study_is_opened_again(tmp_path: Path) -> None:
    probe = tmp_path / "probes" / "0000"
    probe.mkdir(parents=True)
    write_json(probe / "measurement.json", {"outcome": "completed"})
    for half in (probe / ".answer.json.4711", tmp_path / ".report.html.12", tmp_path / ".hidden.txt"):
        half.write_text("{")
    with locked(tmp_path):
        left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"measurement.json", ".hidden.txt", ".lock"}
