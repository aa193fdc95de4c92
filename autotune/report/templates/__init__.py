"""Templates of a report's page and of its accelerate script."""

from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("autotune.report", "templates"),
        autoescape=lambda name: bool(name and name.endswith((".html", ".svg"))),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def rendered(name: str, **values: Any) -> str:
    """The template's text with these values; in .html and .svg files every value is escaped."""
    return _environment().get_template(name).render(values)


@cache
def text_of(name: str) -> str:
    """The file as it is."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
