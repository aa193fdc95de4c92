"""Packing."""

from transformers import DataCollatorWithFlattening

from autotune.space.settings import Context
from autotune.space.settings.packing import COLLATOR, SETTING
from tests.makers import cpu, workload
from tests.space.settings.fakes import observed


def test_nobody_packs_by_himself() -> None:
    assert SETTING.from_user(Context(cpu(), workload())) == "none"


def test_it_is_an_argument_of_the_data() -> None:
    assert SETTING.apply("flattening", cpu()).data_arguments == {"packing": True}
    assert SETTING.apply("none", cpu()).data_arguments == {"packing": False}


def test_it_is_read_back_from_the_trainer_s_collator() -> None:
    assert DataCollatorWithFlattening.__name__ == COLLATOR
    assert SETTING.read_back(observed(collator=DataCollatorWithFlattening())) == "flattening"
    assert SETTING.read_back(observed(collator=print)) == "none"


def test_it_is_unavailable_as_data_and_model_say() -> None:
    assert SETTING.unavailable("none", Context(cpu(), workload())) is None
    assert SETTING.unavailable("flattening", Context(cpu(), workload(collating={"packing": None}))) is None
    assert (
        SETTING.unavailable("flattening", Context(cpu(), workload(collating={"packing": "no positions"})))
        == "no positions"
    )
    assert "not known" in (SETTING.unavailable("flattening", Context(cpu(), workload())) or "")
