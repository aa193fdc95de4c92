"""The page of loggers: its extras exist, and trackio's is not offered beside pins that it cannot stand beside."""

import re
import tomllib

from autotune.core.request import LOGGERS
from tests.docs.pages import PAGES, ROOT

PAGE = PAGES["docs/loggers.md"]


def test_each_logger_is_an_extra_that_the_page_installs_and_trackio_without_the_pins() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = re.findall(r"^.*pip install (.*)-e '\.\[(\w+)\]'(?: +# or ([\w, ]+))?$", PAGE, re.MULTILINE)
    named = {name: pins for pins, first, others in installed for name in (first, *filter(None, others.split(", ")))}
    assert set(named) == set(LOGGERS) <= set(extras)
    assert {name for name, pins in named.items() if not pins} == {"trackio"}
