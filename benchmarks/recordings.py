"""Step times of real trainings, recorded without a pause, for stopping.py.

python benchmarks/recordings.py [FOLDER]: a plain script's training of every case of fidelity.py, for 150 steps or
20 s. Every recording is kept in FOLDER at once: the same command goes on where it was stopped. Needs an idle machine for
about twelve minutes; adds an occasion to tests/data/step_times.json, because a machine differs from day to day.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fidelity import CONFIGURATIONS, GLOBAL_BATCH, LIMIT, MODELS, PLAIN, ROOT, asked, workload_of, write_answer

from autotune.core import Configuration, Environment
from autotune.probe.process.launcher import ProbeHost

STEPS, SECONDS = 150, 20
RECORDED = ROOT / "tests" / "data" / "step_times.json"


def recorded(folder: Path) -> list[float]:
    """Step times in seconds, from the very first step, of the training whose answer lies in the folder."""
    script = str(ROOT / "benchmarks" / "plain_training.py")
    command = [sys.executable, script, str(folder), str(LIMIT), str(SECONDS), str(STEPS)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [round(seconds, 5) for seconds in json.loads(out.strip().splitlines()[-1])["step_times_s"]]


def main() -> None:
    kept = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    kept.mkdir(parents=True, exist_ok=True)
    every: list[dict[str, Any]] = []
    with ProbeHost() as host, tempfile.TemporaryDirectory() as scratch:
        environment = Environment.from_dict(asked(host, "capabilities", {"device": "cpu"}))
        for number, (micro, settings) in enumerate(CONFIGURATIONS):
            for model in MODELS:
                path = kept / f"{model}-{number}.json"
                if not path.exists():
                    configuration = Configuration.exact(GLOBAL_BATCH, micro, PLAIN | settings)
                    folder = Path(scratch) / path.stem
                    folder.mkdir()
                    write_answer(folder, environment, workload_of(host, model, Path(scratch) / "cache"), configuration)
                    one = {"model": model, "configuration": str(configuration), "step_times_s": recorded(folder)}
                    path.write_text(json.dumps(one))
                every.append(json.loads(path.read_text()))
    before = json.loads(RECORDED.read_text(encoding="utf-8"))
    occasion = 1 + max((item["occasion"] for item in before), default=0)
    lines = ",\n".join(json.dumps(item) for item in [*before, *({"occasion": occasion} | item for item in every)])
    RECORDED.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
