"""The gateway's page on phones, by touch and for screen readers, in a real Chromium, without engines."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from omni_gateway.entries.pipelines import ServedPipeline
from support.peers.answering_entry import CUT_SEED, LONG_SEED, serve_entry
from support.peers.flooding_entry import ENDLESS, FloodingEntry, serve_flood
from support.peers.gateways import serve_gateway
from support.peers.hearing_entry import ANSWER, HEARD, serve_hearing
from support.processes.browsers import FLAGS, chromium
from support.processes.foreign_programs import install_package
from support.processes.polling import wait_until

pytestmark = [pytest.mark.full]

SMALL: dict[str, Any] = {"viewport": {"width": 320, "height": 568}, "has_touch": True, "is_mobile": True}
DESKTOP: dict[str, Any] = {"viewport": {"width": 1100, "height": 820}}
SHAPES = pytest.mark.parametrize("shape", [SMALL, DESKTOP], ids=["phone", "desktop"])
COLORS = pytest.mark.parametrize("colors", ["light", "dark"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def speaking() -> Iterator[str]:
    """URL of a gateway whose model answers with two words and a little audio."""
    with serve_entry() as (port, _), serve_gateway(ServedPipeline("words", f"grpc://127.0.0.1:{port}")) as url:
        yield url


@pytest.fixture(scope="module")
def flood() -> Iterator[tuple[str, FloodingEntry]]:
    """URL of a gateway whose model may write without end, and the model."""
    with serve_flood(0.05) as (port, entry), serve_gateway(ServedPipeline("flood", f"grpc://127.0.0.1:{port}")) as url:
        yield url, entry


def open_page(browser: Browser, url: str, shape: dict[str, Any], colors: Any = "light") -> Page:
    page = browser.new_context(**shape, color_scheme=colors).new_page()
    page.goto(url)
    expect(page.locator("#send")).to_be_enabled()
    return page


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(file, "PNG")
    return file.getvalue()


def press(page: Page, selector: str, shape: dict[str, Any]) -> None:
    button = page.locator(selector)
    button.tap() if "has_touch" in shape else button.click()


def set_seed(page: Page, seed: int) -> None:
    page.locator("#settings summary").click()
    page.locator("#seed").fill(str(seed))
    page.keyboard.press("Escape")


def check_width(page: Page, shape: dict[str, Any]) -> None:
    """Checks that nothing is wider than the window, and that no control ends outside of it."""
    width = shape["viewport"]["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = page.evaluate(
        """(width) => [...document.querySelectorAll("button, select, input, textarea, summary, a")]
          .filter((one) => one.checkVisibility() && !one.closest("pre"))
          .filter((one) => one.getBoundingClientRect().right > width + 1 || one.getBoundingClientRect().left < -1)
          .map((one) => one.id || one.textContent)""",
        width,
    )
    assert outside == []


@SHAPES
def test_stop_ends_an_answer(browser: Browser, flood: tuple[str, FloodingEntry], shape: dict[str, Any]) -> None:
    url, entry = flood
    page = open_page(browser, url, shape)
    page.locator("#text").fill(ENDLESS)
    press(page, "#send", shape)
    expect(page.locator(".answer")).to_contain_text("word")
    expect(page.locator("#stop")).to_be_in_viewport()
    check_width(page, shape)
    press(page, "#stop", shape)
    expect(page.locator(".turn")).to_have_attribute("data-state", "stopped")
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator("#send")).to_be_visible()
    wait_until(lambda: entry.endless == 0, why=lambda: "the request was not cancelled in the stage")
    page.context.close()


@SHAPES
def test_stop_ends_speech_that_plays_on_after_its_answer(
    browser: Browser, speaking: str, shape: dict[str, Any]
) -> None:
    page = open_page(browser, speaking, shape)
    set_seed(page, LONG_SEED)
    page.locator("#text").fill("Hello")
    press(page, "#send", shape)
    expect(page.locator(".turn")).to_have_attribute("data-state", "done")
    expect(page.locator("#stop")).to_be_in_viewport()
    expect(page.locator("#send")).to_be_visible()
    press(page, "#stop", shape)
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator("[data-part='replay']")).to_have_text("Play again")
    press(page, "[data-part='replay']", shape)
    expect(page.locator("#stop")).to_be_visible()
    press(page, "#stop", shape)
    expect(page.locator("#stop")).to_be_hidden()
    page.context.close()


@SHAPES
def test_the_status_is_seen(browser: Browser, speaking: str, shape: dict[str, Any]) -> None:
    page = open_page(browser, speaking, shape)
    page.locator("#file").set_input_files(
        [{"name": "a-rather-long-name.gif", "mimeType": "image/gif", "buffer": b"GIF"}]
    )
    status = page.locator("#status")
    expect(status).to_contain_text("cannot be sent")
    expect(status).to_be_in_viewport()
    box = status.bounding_box()
    assert box is not None
    assert box["width"] > 200
    check_width(page, shape)
    page.context.close()


@SHAPES
def test_random_weights_and_cut_speech_are_named(browser: Browser, speaking: str, shape: dict[str, Any]) -> None:
    page = open_page(browser, speaking, shape)
    expect(page.locator("[data-notice='model']")).to_contain_text("random weights")
    set_seed(page, CUT_SEED)
    page.locator("#text").fill("Hello")
    press(page, "#send", shape)
    expect(page.locator(".note")).to_contain_text("The speech was cut: talker")
    page.context.close()


@SHAPES
@COLORS
def test_axe_finds_nothing(browser: Browser, speaking: str, shape: dict[str, Any], colors: str) -> None:
    """axe-core's rules for WCAG and its best practices, before and after an answer, with everything unfolded."""
    axe = (install_package("axe") / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    page = open_page(browser, speaking, shape, colors)
    page.evaluate(axe)
    found = {"start": find_violations(page)}
    page.locator("#settings summary").click()
    found["settings"] = find_violations(page)
    check_width(page, shape)
    page.keyboard.press("Escape")
    page.locator("#file").set_input_files([{"name": "a.png", "mimeType": "image/png", "buffer": picture()}])
    page.locator("#text").fill("Hello " * 30)
    press(page, "#send", shape)
    expect(page.locator(".turn")).to_have_attribute("data-state", "done")
    page.locator(".request summary").click()
    found["answer"] = find_violations(page)
    check_width(page, shape)
    assert found == {"start": [], "settings": [], "answer": []}
    page.context.close()


def find_violations(page: Page) -> list[str]:
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{one['id']}: {one['help']}: {node['html'][:120]}" for one in found for node in one["nodes"]]


def test_the_words_of_a_recording_stand_for_it_in_later_turns(browser: Browser) -> None:
    with serve_hearing() as (port, entry), serve_gateway(ServedPipeline("ear", f"grpc://127.0.0.1:{port}")) as url:
        page = open_page(browser, url, DESKTOP)
        for turn in range(2):
            page.locator("#file").set_input_files([{"name": "a.wav", "mimeType": "audio/wav", "buffer": spoken()}])
            page.locator("#send").click()
            expect(page.locator(".turn")).to_have_count(turn + 1)
            expect(page.locator(".turn").last).to_have_attribute("data-state", "done")
            expect(page.locator(".turn").last).to_contain_text(ANSWER)
        first, second = (start.chat.messages for start in entry.starts)
        assert [part.WhichOneof("part") for message in first for part in message.parts] == ["audio"]
        assert [(one.role, one.parts[0].text) for one in second[:-1]] == [
            ("user", "".join(HEARD).strip()),
            ("assistant", ANSWER),
        ]
        assert second[-1].parts[0].WhichOneof("part") == "audio"
        page.context.close()


def spoken() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16_000)
        writer.writeframes(bytes(32_000))
    return file.getvalue()
