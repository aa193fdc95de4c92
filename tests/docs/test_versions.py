"""The site of all versions, with pages that stand for built ones, and what each page tells of itself."""

import json
from pathlib import Path

import pytest

from tests.docs.pages import docs_module

VERSIONS = docs_module("versions")
URL = "https://example.org/autotune/"


def pages(tag: str | None, target: Path, variables: dict[str, str]) -> None:
    (target / "commands").mkdir(parents=True)
    for name in ("index", "404", "commands/search"):
        (target / f"{name}.html").write_text(f"{name} of {tag}: {variables['DOCS_URL']}, {variables['DOCS_VERSIONS']}")
    (target / "llms.txt").write_text("[Install](install.html)")


def test_of_each_minor_version_the_last_release_is_built_and_the_newest_comes_first() -> None:
    tags = ["v0.1.0", "v0.9.0", "v0.10.0", "v0.1.1", "v0.1.2rc1", "nightly"]
    assert list(VERSIONS.versions(tags).items()) == [("0.10", "v0.10.0"), ("0.9", "v0.9.0"), ("0.1", "v0.1.1")]


@pytest.mark.parametrize(("tags", "newest"), [({}, "dev"), ({"0.2": "v0.2.1", "0.1": "v0.1.0"}, "0.2")])
def test_an_address_without_a_version_leads_to_the_newest_one(
    tmp_path: Path, tags: dict[str, str], newest: str
) -> None:
    VERSIONS.build(tmp_path, URL, tags, pages)
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [(item["version"], item["tag"]) for item in listed] == [*tags.items(), ("dev", None)]
    for item in listed:
        names = " ".join([*tags, "dev"])
        assert (
            tmp_path / item["version"] / "index.html"
        ).read_text() == f"index of {item['tag']}: {item['url']}, {names}"
    for page in ("index.html", "commands/search.html"):
        assert (tmp_path / page).read_text().count(f"{URL}{newest}/{page}") == 4, (
            "for scripts, without, by hand, canonical"
        )
    assert (tmp_path / "404.html").read_text().startswith(f"404 of {tags.get(newest)}")
    assert (tmp_path / "llms.txt").read_text() == f"[Install]({URL}{newest}/install.html)"
