"""The page in a real browser: search, filters, folds and counters work, and quoted code does nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_selenium_python import Axe
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from fsdp_migrate.pipeline.outcome import FileOutcome, RunResult
from fsdp_migrate.report.rewrite import html_report as html
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HOSTILE = (
    "</script></pre></title><script>document.title = 'ran'</script><img src=x onerror=\"document.title = 'ran'\">"
    "<style>* { display: none }</style><meta http-equiv=refresh content='0;url=about:blank'>\x00\x1b\u202e"
)
LONG = b"  # " + b"a long line " * 30

#: Ends the test where the browser never answers; what it waits for is an event, however long that takes.
HANGS = 300

#: Types into the search box; once the browser has drawn the result, how often the search read a text of the page.
SEARCH_AND_DRAW = """
const [words, done] = arguments;
const search = document.getElementById("search");
const text = Object.getOwnPropertyDescriptor(Node.prototype, "textContent");
let reads = 0;
Object.defineProperty(Node.prototype, "textContent", {...text, get() { reads += 1; return text.get.call(this); }});
const drawn = () => requestAnimationFrame(() => requestAnimationFrame(() => {
  Object.defineProperty(Node.prototype, "textContent", text);
  done(reads);
}));
new MutationObserver((_, seen) => { seen.disconnect(); drawn(); })
  .observe(document.getElementById("status"), {childList: true});
search.value = words;
search.dispatchEvent(new Event("input", {bubbles: true}));
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        reason = "needs Debian's packages chromium and chromium-driver"
        if os.environ.get("FSDP_MIGRATE_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def layouts(browser: webdriver.Chrome) -> int:
    """How often the browser has laid out a page."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return int(next(one["value"] for one in metrics if one["name"] == "LayoutCount"))


def finding(rule: str, line: int, level: Level, message: str, path: str) -> Finding:
    return Finding(rule, f"name-of-{rule}", path, line, 0, line, 4, level, message, "do this")


def two_files() -> RunResult:
    """Four findings: two with one hunk and one far from it in a.py, one in sub/b.py."""
    gap = "x = 1\n" * 20
    before, after = f"first = FSDP(m)\n{gap}FSDP.by_hand()\n", f"first = fully_shard(m)\n{gap}FSDP.by_hand()\n"
    first = (
        finding("FSDP101", 1, Level.SAFE, "wraps", "a.py"),
        finding("FSDP104", 1, Level.REVIEW, "casts", "a.py"),
        finding("FSDP203", 22, Level.MANUAL, "summons", "a.py"),
    )
    second = (finding("FSDP104", 1, Level.REVIEW, "casts", "sub/b.py"),)
    files = (
        FileOutcome("a.py", Path("/a.py"), before.encode(), Changed(after.encode(), first)),
        FileOutcome("sub/b.py", Path("/sub/b.py"), b"other(m)\n", Changed(b"another(m)" + LONG + b"\n", second)),
    )
    return RunResult(("src",), True, 9, files)


class Reader:
    """Somebody who reads one report."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self.browser = browser

    def find(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def seen(self, selector: str) -> list[str]:
        return [found.text for found in self.browser.find_elements(By.CSS_SELECTOR, selector) if found.is_displayed()]

    def messages(self) -> list[str]:
        return self.seen(".message")

    def status(self, wanted: str) -> None:
        """The search waits for a pause in typing, so the status may come a moment later."""
        WebDriverWait(self.browser, HANGS).until(lambda _: self.find("#status").text == wanted, wanted)

    def search(self, words: str, wanted: str) -> None:
        box = self.find("#search")
        box.clear()
        box.send_keys(words)
        self.status(wanted)


@pytest.fixture
def reader(browser: webdriver.Chrome, tmp_path: Path) -> Iterator[Reader]:
    file = tmp_path / "report.html"
    file.write_text(html.render(two_files()), encoding="utf-8")
    browser.get(file.as_uri())
    yield Reader(browser)
    assert browser.get_log("browser") == []


def test_everything_is_shown_at_first(reader: Reader) -> None:
    reader.status("4 findings in 2 files")
    assert reader.messages() == ["summons", "casts", "wraps", "casts"]
    assert reader.seen(".file > summary .counter") == ["3", "1"]
    assert "-first = FSDP(m)" in reader.seen(".hunk pre")[1]
    assert reader.seen(".whole pre") == []


@pytest.mark.parametrize(
    ("words", "status", "messages"),
    [
        ("summons", "1 of 4 findings in 1 file", ["summons"]),
        ("SUB/B.PY", "1 of 4 findings in 1 file", ["casts"]),
        ("fsdp104", "2 of 4 findings in 2 files", ["casts", "casts"]),
        ("fully_shard(m)", "2 of 4 findings in 1 file", ["casts", "wraps"]),
        ("casts another", "1 of 4 findings in 1 file", ["casts"]),
        ("[.*", "0 of 4 findings in 0 files", []),
    ],
)
def test_search(reader: Reader, words: str, status: str, messages: list[str]) -> None:
    reader.search(words, status)
    assert reader.messages() == messages
    assert reader.find("#nothing").is_displayed() == (not messages)


def test_nothing_found_has_a_way_back(reader: Reader) -> None:
    reader.search("no such thing", "0 of 4 findings in 0 files")
    reader.find("#reset").click()
    reader.status("4 findings in 2 files")


def test_levels(reader: Reader) -> None:
    reader.find("input[value=review]").click()
    reader.status("2 of 4 findings in 1 file")
    assert reader.messages() == ["summons", "wraps"]
    assert reader.seen(".file > summary .counter") == ["2 of 3"]
    counters = {level.value: reader.find(f"#count-{level.value}").text for level in Level}
    assert counters == {"manual": "1", "review": "0", "safe": "1", "info": "0"}
    reader.find("input[value=review]").click()
    reader.status("4 findings in 2 files")


def test_rules(reader: Reader) -> None:
    rules = Select(reader.find("#rule"))
    assert [option.text for option in rules.options][1:] == [
        "FSDP101 name-of-FSDP101",
        "FSDP104 name-of-FSDP104",
        "FSDP203 name-of-FSDP203",
    ]
    rules.select_by_value("FSDP104")
    reader.status("2 of 4 findings in 2 files")
    reader.search("a.py", "1 of 4 findings in 1 file")
    rules.select_by_value("")
    reader.status("3 of 4 findings in 1 file")


def test_folds(reader: Reader) -> None:
    reader.find("#collapse").click()
    assert reader.messages() == []
    assert len(reader.seen(".file > summary")) == 2
    assert reader.browser.find_elements(By.CSS_SELECTOR, "#changes details[open]") == []
    reader.find("#expand").click()
    assert len(reader.messages()) == 4
    assert len(reader.seen(".whole pre")) == 2
    reader.find(".hunk > summary").click()
    WebDriverWait(reader.browser, HANGS).until_not(lambda _: reader.find(".hunk pre").is_displayed())


def test_by_keyboard(reader: Reader) -> None:
    reader.find("body").send_keys("/")
    focused = reader.browser.switch_to.active_element
    assert focused.get_attribute("id") == "search"
    focused.send_keys("summons/", Keys.ENTER)
    reader.status("0 of 4 findings in 0 files")
    focused.send_keys(Keys.BACKSPACE)
    reader.status("1 of 4 findings in 1 file")
    assert "report.html" in reader.browser.current_url
    focused.send_keys(Keys.TAB)
    assert reader.browser.switch_to.active_element.get_attribute("id") == "rule"


def test_a_link_opens_what_it_leads_to(reader: Reader) -> None:
    explanation = reader.find("#rule-FSDP104")
    assert explanation.get_attribute("open") is None
    reader.find("#next a[href='#rule-FSDP104']").click()
    WebDriverWait(reader.browser, HANGS).until(lambda _: explanation.get_attribute("open") is not None)
    reader.search("nowhere", "0 of 4 findings in 0 files")
    reader.find("#assumptions .places a").click()
    reader.status("4 findings in 2 files")


@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_sticks_out_at_the_side(reader: Reader, width: int) -> None:
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    reader.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    reader.find("#expand").click()
    try:
        assert reader.browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        reader.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def contrast(first: str, second: str) -> float:
    """Of two colours as a browser names them, by the formula of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour.strip("rgba()").split(",")[:3]]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_its_ground(reader: Reader, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    reader.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        page = reader.find("body").value_of_css_property("background-color")
        assert (contrast(page, "rgb(0, 0, 0)") < 2) == (scheme == "dark")
        for selector in ("body", "a", ".advice", "#status", ".badge.manual", ".badge.review", ".badge.safe", ".info"):
            ink = reader.find(selector).value_of_css_property("color")
            assert contrast(ink, page) >= 4.5, selector
        for selector in ("del", "ins"):
            line = reader.find(selector)
            colours = line.value_of_css_property("color"), line.value_of_css_property("background-color")
            assert contrast(*colours) >= 4.5, selector
    finally:
        reader.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_card_is_a_filter_that_the_address_keeps(reader: Reader) -> None:
    reader.find(".card[data-level=manual]").click()
    reader.status("1 of 4 findings in 1 file")
    assert reader.browser.current_url.endswith("#level=manual")
    Select(reader.find("#rule")).select_by_value("FSDP203")
    assert reader.browser.current_url.endswith("#rule=FSDP203&level=manual")
    reader.browser.refresh()
    reader.status("1 of 4 findings in 1 file")
    assert reader.messages() == ["summons"]
    reader.find(".places a").click()
    reader.status("4 findings in 2 files")
    assert "=" not in reader.browser.current_url


def test_what_is_done_by_hand_is_remembered(reader: Reader) -> None:
    assert reader.seen("#progress") == ["0 of 1 done"]
    assert reader.find("main > section:nth-of-type(2)").get_attribute("id") == "by-hand"
    reader.find(".done").click()
    assert reader.seen("#progress") == ["1 of 1 done"]
    reader.browser.refresh()
    assert reader.seen("#progress") == ["1 of 1 done"]
    reader.find(".done").click()
    reader.browser.refresh()
    assert reader.seen("#progress") == ["0 of 1 done"]


def test_new_lines_are_copied_as_code(reader: Reader) -> None:
    reader.browser.execute_script(
        "window.taken = []; document.execCommand = () => taken.push(getSelection().toString());"
        "navigator.clipboard.writeText = async (text) => taken.push(text);"
    )
    reader.find("#expand").click()
    button = next(one for one in reader.browser.find_elements(By.CSS_SELECTOR, ".copy") if one.text == "Copy new lines")
    button.click()
    WebDriverWait(reader.browser, HANGS).until(lambda _: reader.browser.execute_script("return taken.length"))
    assert reader.browser.execute_script("return taken[0]").startswith("first = fully_shard(m)\nx = 1\n")
    assert button.text == "Copied"


def test_on_paper_controls_are_gone_and_the_ground_is_white(reader: Reader) -> None:
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    reader.find("#expand").click()
    messages = reader.messages()
    reader.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    try:
        assert reader.messages() == messages
        assert reader.seen("#filter, nav, .copy") == []
        ground, ink = (reader.find("body").value_of_css_property(name) for name in ("background-color", "color"))
        assert contrast("rgb(255, 255, 255)", ink) > 15
        assert ground in ("rgba(255, 255, 255, 1)", "rgba(0, 0, 0, 0)")
    finally:
        reader.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_axe_finds_nothing(reader: Reader, width: int, scheme: str) -> None:
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    reader.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    reader.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        reader.find("#expand").click()
        axe = Axe(reader.browser)
        axe.inject()
        found = axe.run()
        assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []
        assert len(found["passes"]) > 10
    finally:
        reader.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        reader.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize(
    ("spread", "words"),
    [(1, "number-4321-end"), (10, "number-4321-end fully_shard(4321)")],
    ids=["one-hunk", "many-hunks"],
)
def test_five_thousand_hostile_findings_are_inert_and_do_not_freeze(
    browser: webdriver.Chrome, tmp_path: Path, spread: int, words: str
) -> None:
    levels = list(Level)
    before, after, findings = [], [], []
    for number in range(5000):
        message = f"number-{number}-end {HOSTILE}"
        findings.append(finding("FSDP101", len(before) + 1, levels[number % 4], message, HOSTILE))
        before += [f"FSDP({number}) # {HOSTILE}", *(f"{number}.{more}" for more in range(1, spread))]
        after += [f"fully_shard({number}) # {HOSTILE}", *before[len(after) + 1 :]]
    for lines in (before, after):
        lines.append("long = " + "9" * 3_000_000)
    old, new = ("\n".join(lines).encode() for lines in (before, after))
    result = RunResult((HOSTILE,), True, 1, (FileOutcome(HOSTILE, Path("/a"), old, Changed(new, tuple(findings))),))
    file = tmp_path / "report.html"
    file.write_text(html.render(result), encoding="utf-8")
    assert file.stat().st_size < 20_000_000
    browser.set_page_load_timeout(HANGS)
    browser.set_script_timeout(HANGS)
    browser.get(file.as_uri())
    reader = Reader(browser)
    # Of the 1250 notes twelve are shown and the others counted.
    reader.status("3762 findings in 1 file")
    # Scrolls the findings into view: what is drawn is what costs time.
    reader.find("#search").click()
    browser.execute_cdp_cmd("Performance.enable", {})
    before_search = layouts(browser)
    # Each finding and each hunk is read at the first search, which is all that it may cost with thousands of them.
    assert browser.execute_async_script(SEARCH_AND_DRAW, words) <= 2 * 3762 + 10
    assert browser.execute_async_script(SEARCH_AND_DRAW, f"{words} ") == 0
    assert layouts(browser) - before_search < 50
    reader.status("1 of 3762 findings in 1 file")
    (shown,) = reader.seen(".finding:not([hidden]) .message")
    assert shown.startswith("number-4321-end </script></pre></title><script>document.title = 'ran'</script><img")
    assert shown.endswith("\\x00\\x1b\\u202e")
    assert browser.title == "From FSDP1 to FSDP2"
    assert browser.find_elements(By.CSS_SELECTOR, "img, main script, main style, main meta") == []
    assert browser.get_log("browser") == []
