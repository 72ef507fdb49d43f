"""The page in a real browser: wide and narrow, light and dark, by keyboard, without network or errors.

Where no Chromium with its driver is installed these tests are skipped; PARTITION_NEEDS_BROWSER=1 makes that a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from partitioner.ir.units import format_seconds
from partitioner.plan_view import Plan

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        missing = "chromium and chromedriver are not both installed (Debian: chromium, chromium-driver)"
        if os.environ.get("PARTITION_NEEDS_BROWSER"):
            pytest.fail(missing)
        pytest.skip(missing)
    options = Options()
    options.binary_location = binary
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=Service(driver)) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(real_plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    real_plan.to_html(path)
    return path


def shown(browser: webdriver.Chrome, page: Path, *, width: int, scheme: str = "light") -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    browser.get(page.as_uri())


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_offline_without_errors_and_fits(
    browser: webdriver.Chrome, page: Path, width: int, scheme: str
) -> None:
    shown(browser, page, width=width, scheme=scheme)
    WebDriverWait(browser, 10).until(lambda one: one.execute_script("return document.readyState") == "complete")
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(browser: webdriver.Chrome, page: Path, scheme: str) -> None:
    """A contrast of at least 4.5 (WCAG 2.1, 1.4.3)."""
    shown(browser, page, width=1280, scheme=scheme)
    paper, ink, soft, link = browser.execute_script(_COLOURS)
    for colour in (ink, soft, link):
        assert contrast(colour, paper) >= 4.5
    for bar, label in browser.execute_script(_BARS):
        assert contrast(label, bar) >= 4.5


def test_no_label_of_a_chart_overlaps_another_or_leaves_it(browser: webdriver.Chrome, page: Path) -> None:
    shown(browser, page, width=1280)
    charts = browser.execute_script(_LABELS)
    assert charts
    for edges, labels in charts:
        for label in labels:
            assert label["left"] >= edges["left"] - 1 and label["right"] <= edges["right"] + 1, label["text"]
        for index, one in enumerate(labels):
            for other in labels[index + 1 :]:
                apart = (
                    one["right"] <= other["left"] + 1 or other["right"] <= one["left"] + 1
                    or one["bottom"] <= other["top"] + 3 or other["bottom"] <= one["top"] + 3
                )  # fmt: skip
                assert apart, (one["text"], other["text"])


def test_the_keyboard_reaches_everything_that_opens_or_scrolls(browser: webdriver.Chrome, page: Path) -> None:
    shown(browser, page, width=390)
    reached = []
    for _ in range(120):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        active = browser.switch_to.active_element
        if active.tag_name == "body":
            break
        reached.append((active.tag_name, active.get_attribute("aria-label") or active.text))
    tags = [tag for tag, _ in reached]
    assert tags[0] == "a"  # past the navigation
    assert tags.count("summary") == len(browser.find_elements(By.TAG_NAME, "summary"))
    labels = [label for _, label in reached]
    regions = browser.find_elements(By.CSS_SELECTOR, ".scroll")
    visible = [region.get_attribute("aria-label") for region in regions if region.is_displayed()]
    assert set(visible) <= set(labels)


def test_a_stage_opens_into_its_layers(browser: webdriver.Chrome, page: Path, real_plan: Plan) -> None:
    shown(browser, page, width=1280)
    details: Any = browser.find_element(By.CSS_SELECTOR, "#stages details")
    layer = real_plan.stages[0].layers[0]
    assert layer not in details.text
    details.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    assert layer in details.text


def test_the_step_on_the_page_is_that_of_the_plan(browser: webdriver.Chrome, page: Path, real_plan: Plan) -> None:
    shown(browser, page, width=1280)
    figure = browser.find_element(By.CSS_SELECTOR, '[data-figure="predicted step"]')
    assert figure.text == format_seconds(real_plan.predicted.step_seconds)


_COLOURS = """
const all = getComputedStyle(document.body), soft = getComputedStyle(document.querySelector('.remark'));
return [all.backgroundColor, all.color, soft.color, getComputedStyle(document.querySelector('nav a')).color];
"""
_BARS = """
return [...document.querySelectorAll('.bar')].filter(bar => bar.querySelector('text')).map(bar =>
  [getComputedStyle(bar.querySelector('rect')).fill, getComputedStyle(bar.querySelector('text')).fill]);
"""
_LABELS = """
return [...document.querySelectorAll('.chart')].map(chart => [chart.getBoundingClientRect(),
  [...chart.querySelectorAll('text')].map(text =>
    ({...text.getBoundingClientRect().toJSON(), text: text.textContent}))]);
"""


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours `rgb(r, g, b)` (WCAG 2.1, definition of contrast ratio)."""
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
