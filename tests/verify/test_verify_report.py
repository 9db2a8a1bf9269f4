"""The reports of a comparison: the page in a real browser, in light and dark, and its numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.recording.value import Value
from fsdp_migrate.verify.report import render
from fsdp_migrate.verify.report.charts import chart, level
from fsdp_migrate.verify.verdict import Verdict
from tests.command.test_report_browser import browser, contrast
from tests.verify import variants

__all__ = ["browser"]
HOSTILE = "0:</style><script>document.title = 'ran'</script><img src=x>"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    directory = tmp_path_factory.mktemp("recordings")
    variants.alone(str(directory))
    return read(directory / "alone")


def changed(recording: Recording, step: int, key: str) -> Recording:
    """The same run, but for one element of a weight after one step."""
    steps = list(recording.steps)
    (value,) = steps[step].weights[key]
    assert value is not None
    other = Value(value.digest + 2, *[getattr(value, n) for n in ("dtype", "numel", "l2", "total", "greatest")], 0,
                  {**value.samples, 3: value.samples[3] + 2})  # fmt: skip
    steps[step] = replace(steps[step], weights={**steps[step].weights, key: (other,)})
    return replace(recording, steps=tuple(steps))


@pytest.fixture(scope="module")
def different(recording: Recording) -> Verdict:
    return verdict_of(recording, changed(recording, 1, "0:blocks.1.linear.weight"))


def test_json_has_the_place_and_the_size(different: Verdict, recording: Recording) -> None:
    answer = json.loads(render(".json", different))
    first = answer["first"]
    assert (answer["verdict"], first["question"], first["step"], first["name"], first["ulps"]) == (
        "different",
        "weights",
        1,
        "blocks.1.linear.weight",
        2,
    )
    assert answer["cause"] is None
    same = json.loads(render(".json", verdict_of(recording, recording)))
    assert (same["verdict"], same["first"], same["losses"]["before"]) == ("equal", None, same["losses"]["after"])


def test_markdown_leads_with_the_verdict(different: Verdict) -> None:
    lines = render(".md", different).splitlines()
    assert lines[2].startswith("**different: 1 of ")
    assert "- First difference: step 1, weights, blocks.1.linear.weight" in lines[4]


@pytest.fixture
def page(browser: webdriver.Chrome, different: Verdict, tmp_path: Path) -> Iterator[webdriver.Chrome]:
    file = tmp_path / "report.html"
    file.write_text(render(".html", different), encoding="utf-8")
    browser.get(file.as_uri())
    yield browser
    assert browser.get_log("browser") == []


def test_the_page_shows_verdict_curves_map_and_tree(page: webdriver.Chrome) -> None:
    assert page.find_element(By.ID, "verdict").text.startswith("different: 1 of ")
    assert "step 1, weights, blocks.1.linear.weight" in page.find_element(By.ID, "first").text
    curves = page.find_elements(By.CSS_SELECTOR, "#curves polyline")
    assert [curve.get_attribute("class") for curve in curves] == ["before", "after", "apart"] * 2
    assert all(curve.size["width"] > 100 for curve in curves)
    cells = page.find_elements(By.CSS_SELECTOR, "#map rect")
    assert len(cells) == 9 * variants.STEPS
    assert [cell.get_attribute("class") for cell in cells].count("m0") == len(cells) - 1


def is_visible(element: WebElement) -> bool:
    """Unlike ``is_displayed``, which takes what a closed ``<details>`` holds for displayed."""
    return bool(element.parent.execute_script("return arguments[0].checkVisibility()", element))


def test_the_tree_is_open_where_the_first_difference_is(page: webdriver.Chrome) -> None:
    way = page.find_elements(By.CSS_SELECTOR, "#tree .mono.here")
    assert [here.text for here in way] == ["Model", "blocks", "1", "linear"]
    assert all(is_visible(here) for here in way)
    told = page.find_element(By.CSS_SELECTOR, "#tree small.here")
    assert told.text == "step 1, weights, blocks.1.linear.weight"
    inside = page.find_elements(By.CSS_SELECTOR, "#tree details details details")
    assert [(each.get_attribute("open") is not None, each.text.split()[0]) for each in inside] == [
        (False, "0"), (True, "1")]  # fmt: skip
    other = inside[0].find_element(By.CSS_SELECTOR, ":scope > ul .mono")
    assert not is_visible(other)
    inside[0].find_element(By.TAG_NAME, "summary").click()
    assert is_visible(other)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(page: webdriver.Chrome, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        ground = page.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")
        assert (contrast(ground, "rgb(0, 0, 0)") < 2) == (scheme == "dark")
        for selector in ("body", "#verdict", "dt", "td.some"):
            ink = page.find_element(By.CSS_SELECTOR, selector).value_of_css_property("color")
            assert contrast(ink, ground) >= 4.5, selector
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_names_of_the_program_are_text(browser: webdriver.Chrome, recording: Recording, tmp_path: Path) -> None:
    verdict = verdict_of(recording, changed(recording, 1, "0:blocks.1.linear.weight"), None)
    file = tmp_path / "report.html"
    file.write_text(render(".html", replace(verdict, notes=(HOSTILE,))), encoding="utf-8")
    browser.get(file.as_uri())
    assert browser.title == "Before and after, compared"
    assert browser.find_elements(By.CSS_SELECTOR, "img, script") == []


def test_charts_and_levels() -> None:
    assert chart("nothing", {"before": []}) is None
    flat = chart("flat", {"before": [(0, 2.0), (4, 2.0)]})
    assert flat is not None
    assert len({point.split(",")[1] for point in flat.lines[0].points.split()}) == 1
    assert [level(r) for r in (0, 1e-9, 1e-7, 1e-6, 1e-4, 1e-2, 0.5, float("inf"))] == [0, 1, 1, 2, 3, 4, 5, 6]
