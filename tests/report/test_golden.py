"""Rendered reports and files for other tools, whole: `--update-golden` writes them again."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune.core import Outcome, Trial
from autotune.core.loss_curves import Curve, Numerics
from autotune.core.note import Note, NoteKind
from autotune.core.request import tuning_request
from autotune.core.warning import ResultWarning, WarningKind
from autotune.report.exports import exports
from autotune.report.notebook import notebook_html
from autotune.report.snippets import script_lines, snippets
from autotune.report.summary import answer_lines, summary
from tests.makers import (
    configuration,
    ended,
    gpu,
    out_of_memory,
    result,
    trial,
    verification,
    warned,
    with_setup,
    workload,
)
from tests.report.exports.answers import EVERY

SLOW = configuration(8, lora="none", packing="none", padding="none")
FAST = configuration(16, lora="8", packing="none", padding="64", attention_mask="where_needed")
FALLING = {number: Curve(tuple(9.0 - step / 10 for step in range(14))) for number in (1, 2, 3)}


def clock(mhz: float) -> ResultWarning:
    return ResultWarning(WarningKind.CPU_CLOCK, {"fall": 0.2, "mhz": mhz})


RICH = result(
    [
        trial(0, 10.0, of=SLOW, confirmed=10.0, observed_warnings=(clock(1700),)),
        trial(
            1,
            20.0,
            of=FAST,
            confirmed=20.0,
            observed_warnings=(clock(1900),),
            repeated_because=warned("x"),
        ),
        replace(trial(2, 30.0, confirmed=30.0), disqualified_reason="its loss differs"),
        Trial(3, SLOW, ended(Outcome.CRASHED, reason="a | b\nc\r\nd")),
    ],
    workload=workload(name="org/gpt2", source="org/gpt2"),
    environment=gpu(
        device_count=4, variables={"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, others=("python (7)",)
    ),
    study_warnings=warned("blender (7)"),
    notes=(Note(NoteKind.COLUMNS, detail="a *note*"),),
    left_out=("losses",),
    verification=verification(FAST, speed_up=1.9),
    numerics=Numerics(FALLING, {0: FALLING, 1: FALLING}),
)
RICH_SETUP = {"switches": {"enable_cudnn_sdp": False}, "process_environment": {"NAME": "a value"}, "processes": 2}
REPORTS = {
    "plain": result(),
    "rich": with_setup(RICH, **RICH_SETUP),
    "kept": result([trial(0, 10.0, of=SLOW, confirmed=10.0), trial(1, 5.0, of=FAST, confirmed=5.0)]),
    "not_proven": result(
        [trial(0, 10.0, of=SLOW), trial(1, 20.0, of=FAST)],
        request=tuning_request("gpt2-mini", 48, device="cpu", timeout="10m"),
    ),
    "nothing_fits": result([Trial(0, SLOW, out_of_memory(SLOW))]),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_result_is_rendered_as_before(name: str, golden: Callable[[str, str], None]) -> None:
    study = REPORTS[name]
    forms = [f"{form.title}\n{form.text}\n{form.note}" for form in snippets(study)]
    script = script_lines("folder", study) if forms else []
    golden(f"report/{name}.txt", "\n".join([*answer_lines(study), "", *script, "", *forms]) + "\n")
    golden(f"report/{name}_summary.txt", summary(study))
    golden(f"report/{name}.html", re.sub("<style>.*?</style>", "", notebook_html(study), flags=re.DOTALL))


@pytest.mark.parametrize("kind", ["plain", "adapter", "deepspeed", "sharded", "two ranks of a CPU"])
def test_files_for_other_tools_are_as_before(kind: str, golden: Callable[[str, str], None]) -> None:
    for name, text in exports(EVERY[kind]).items():
        golden(f"exports/{kind.replace(' ', '_')}/{name}.txt", text)
