"""The gateway's page in a real Chromium, in front of real engines.

OMNIPIPE_SCREENSHOTS=docs/images/page writes the pictures of the docs.
"""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.guard.keys import make_key
from omni_gateway.settings import GatewaySettings
from support.media.spoken import speech_24k
from support.peers.gateways import serve_gateway
from support.processes.browsers import FLAGS, PATIENCE_MS, chromium
from support.processes.pipelines import RunningPipeline
from support.processes.polling import PATIENCE_S

pytestmark = [pytest.mark.pipeline, pytest.mark.full]

TAP = """
globalThis.heard = [];
globalThis.AudioWorkletNode = class extends AudioWorkletNode {
  constructor(context, name, options) {
    super(context, name, options);
    if (name !== "player") return;
    const port = this.port, post = port.postMessage.bind(port);
    port.postMessage = (item) => { if (item !== "end") globalThis.heard.push(...item); post(item); };
  }
};
"""
"""A script that records the samples which the page sends to its playback worklet."""


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bytes, int], Browser]]:
    """A function that starts a browser whose microphone repeats the given PCM of a rate."""
    fake = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    # Only one at a time may be in use in a thread.
    with sync_playwright() as playwright:

        def start(pcm: bytes, rate: int) -> Browser:
            path = tmp_path_factory.mktemp("microphone") / "heard.wav"
            with wave.open(str(path), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(rate)
                file.writeframes(pcm)
            return playwright.chromium.launch(
                executable_path=chromium(), args=[*FLAGS, *fake, f"--use-file-for-fake-audio-capture={path}"]
            )

        yield start


@pytest.fixture(scope="module")
def browser(launch: Callable[[bytes, int], Browser]) -> Browser:
    """A browser that hears a tone of 440 Hz."""
    tone = (np.sin(2 * np.pi * 440 * np.arange(48_000) / 48_000) * 12_000).astype("<i2")
    return launch(tone.tobytes(), 48_000)


@pytest.fixture
def page(browser: Browser, tiny_gateway: str) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1100, "height": 820})
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda line: errors.append(line.text) if "Content Security Policy" in line.text else None)
    opened.add_init_script(TAP)
    opened.goto(tiny_gateway)
    expect(opened.locator("#send")).to_be_enabled()
    opened.locator("summary", has_text="Settings").click()
    opened.locator("#seed").fill("7")
    opened.locator("#longest").fill("16")
    opened.keyboard.press("Escape")
    yield opened
    context.close()
    assert errors == []


def send(page: Page, text: str) -> dict[str, object]:
    """Sends a message by keyboard and waits for the answer. Returns the request's body."""
    page.locator("#text").fill(text)
    with page.expect_request("**/v1/chat/completions") as sent:
        page.locator("#text").press("Enter")
    expect(page.locator(".turn").last).to_have_attribute("data-state", "done")
    return json.loads(sent.value.post_data or "")


def pcm_of(gateway: str, body: dict[str, object]) -> tuple[str, bytes]:
    """Returns the text and the PCM bytes that openai-python receives for the same body."""
    client = openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0)
    text, waveform = "", b""
    for chunk in client.chat.completions.create(**body):  # type: ignore[call-overload]
        audio = (chunk.choices[0].delta.model_dump().get("audio") or {}) if chunk.choices else {}
        text += audio.get("transcript") or ""
        waveform += base64.b64decode(audio.get("data") or "")
    return text, waveform


def screenshot(page: Page, name: str) -> None:
    if folder := os.environ.get("OMNIPIPE_SCREENSHOTS"):
        path = Path(folder) / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.open(io.BytesIO(page.screenshot())).convert("P", palette=Image.Palette.ADAPTIVE, colors=64)
        picture.save(path, optimize=True)


def test_text_is_answered_and_the_page_plays_the_audio_of_the_api(page: Page, tiny_gateway: str) -> None:
    body = send(page, "Tell me what the weather is like.")
    text, waveform = pcm_of(tiny_gateway, body)
    expect(page.locator(".answer")).to_have_text(text, use_inner_text=False)
    heard = page.evaluate("heard.map((sample) => Math.round(sample * 32768))")
    assert len(waveform) > 10_000
    assert b"".join(int(sample).to_bytes(2, "little", signed=True) for sample in heard) == waveform
    expect(page.locator(".facts [data-part='first audio'] dd")).to_contain_text("s")
    assert page.locator(".lane .name").all_inner_texts()[-4:] == ["thinker", "talker", "token2wav", "you hear"]
    for lane in range(3):
        assert page.locator(".turn .lane").nth(lane).locator(".bar:not(.live)").count() > 0
    screenshot(page, "answer")


def test_the_python_shown_does_what_was_done(page: Page, tiny_gateway: str, tmp_path: Path) -> None:
    body = send(page, 'Say "a\\b" and $HOME.')
    page.locator(".request summary").click()
    page.locator('[data-snippet="python"]').click()
    program = page.locator("[data-part='code']").inner_text()
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    text, waveform = pcm_of(tiny_gateway, body)
    assert done.stdout == text
    with wave.open(str(tmp_path / "answer.wav")) as file:
        assert file.readframes(file.getnframes()) == waveform
    page.locator('[data-snippet="curl"]').click()
    shell = page.locator("[data-part='code']").inner_text()
    sent = subprocess.run(
        ["sh", "-c", shell.replace("curl -N", "curl -sSN --trace-ascii /dev/null")],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    ).stdout  # fmt: skip
    chunks = [json.loads(line[6:]) for line in sent.splitlines() if line.startswith("data: {")]
    said = [chunk["choices"][0]["delta"].get("audio", {}).get("transcript", "") for chunk in chunks if chunk["choices"]]
    assert "".join(said) == text


def test_a_recording_is_sent_as_wav(page: Page) -> None:
    page.locator("#record").click()
    expect(page.locator("#record")).to_have_attribute("aria-pressed", "true")
    page.wait_for_timeout(1500)
    page.locator("#record").click()
    expect(page.locator("#attachments li")).to_have_count(1)
    body = send(page, "")
    part = body["messages"][0]["content"][0]  # type: ignore[index]
    assert part["type"] == "input_audio"
    with wave.open(io.BytesIO(base64.b64decode(part["input_audio"]["data"]))) as file:
        assert (file.getframerate(), file.getnchannels()) == (16_000, 1)
        assert file.getnframes() > 8_000
        loudest = max(abs(sample) for sample in memoryview(file.readframes(file.getnframes())).cast("h"))
    assert loudest > 1_000


def test_a_picture_is_sent(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    Image.linear_gradient("L").resize((56, 56)).convert("RGB").save(path)
    page.locator("#file").set_input_files(path)
    body = send(page, "What is this?")
    url = body["messages"][0]["content"][0]["image_url"]["url"]  # type: ignore[index]
    assert base64.b64decode(url.removeprefix("data:image/png;base64,")) == path.read_bytes()
    assert page.locator(".question img").evaluate("image => image.naturalWidth") == 56


def test_an_error_says_what_to_do(page: Page) -> None:
    page.locator("summary", has_text="Settings").click()
    page.locator("#longest").fill("100000000")
    page.keyboard.press("Escape")
    page.locator("#text").fill("Hello")
    page.locator("#text").press("Enter")
    expect(page.locator(".turn").last).to_have_attribute("data-state", "failed")
    expect(page.locator(".error")).to_contain_text("HTTP 400")
    expect(page.locator("#text")).to_have_value("Hello")  # to be sent again


def test_on_a_phone_in_the_dark(browser: Browser, tiny_gateway: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 780}, color_scheme="dark")
    phone = context.new_page()
    phone.goto(tiny_gateway)
    expect(phone.locator("#send")).to_be_enabled()
    phone.locator("summary", has_text="Settings").click()
    phone.locator("#longest").fill("16")
    phone.keyboard.press("Escape")
    send(phone, "Hello")
    phone.locator(".request summary").click()
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    phone.locator(".request summary").click()
    screenshot(phone, "phone")
    context.close()


def test_without_https_it_says_what_to_do(browser: Browser, tiny_gateway: str) -> None:
    # Without HTTPS, Chromium treats only localhost as secure. gateway.test resolves to the same gateway.
    port = tiny_gateway.rsplit(":", 1)[1]
    context = browser.new_context()
    plain = context.new_page()
    plain.goto(f"http://gateway.test:{port}")
    expect(plain.locator("[data-notice='browser']")).to_contain_text(f"http://localhost:{port}")
    expect(plain.locator("#record")).to_be_disabled()
    plain.locator("summary", has_text="Settings").click()
    plain.locator("#longest").fill("8")
    plain.keyboard.press("Escape")
    send(plain, "Hello")
    expect(plain.locator("audio[data-part='whole']")).to_be_visible()  # the speech, once it is complete
    context.close()


def test_a_wrong_key_is_asked_for_again(browser: Browser, tiny_pipeline: RunningPipeline, tmp_path: Path) -> None:
    key, digest = make_key()
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys: [{{name: alice, sha256: {digest}}}]")
    served = ServedPipeline("tiny-omni", f"grpc://{tiny_pipeline.endpoint}")
    with serve_gateway(served, settings=GatewaySettings(keys_file=path)) as url:
        context = browser.new_context()
        locked = context.new_page()
        locked.goto(url)
        expect(locked.locator("[data-notice='models']")).to_contain_text("API key")
        expect(locked.locator("#key")).to_be_focused()
        locked.locator("#key").fill("sk-wrong")
        locked.locator("#key").press("Tab")
        expect(locked.locator("[data-notice='models']")).to_be_visible()
        expect(locked.locator("#send")).to_be_disabled()
        locked.locator("#key").fill(key)
        locked.locator("#key").press("Tab")
        expect(locked.locator("#send")).to_be_enabled()
        expect(locked.locator("[data-notice='models']")).to_have_count(0)
        locked.locator("#longest").fill("8")
        send(locked, "Hello")
        assert key not in locked.locator("[data-part='code']").text_content()  # type: ignore[operator]
        assert locked.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        context.close()


def test_a_call_is_held_by_speaking(launch: Callable[[bytes, int], Browser], tiny_gateway: str) -> None:
    # A sentence twice, and then the time that a busy machine takes to answer. The second interrupts, or follows.
    context = launch(2 * speech_24k()[48_000:] + bytes(30 * 48_000), 24_000).new_context()
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.add_init_script(TAP)
    page.goto(tiny_gateway)
    expect(page.locator("#call")).to_be_enabled()
    page.locator("summary", has_text="Settings").click()
    page.locator("#longest").fill("16")
    page.keyboard.press("Escape")
    page.locator("#call").click()
    expect(page.locator("#call")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#text")).to_be_disabled()
    # What the user said is written down and answered, aloud.
    for turn in range(2):
        expect(page.locator("#talk .question p").nth(turn)).not_to_have_text("…")
        expect(page.locator("#talk .answer").nth(turn)).not_to_be_empty()
    page.wait_for_function("heard.some((sample) => sample !== 0)", timeout=PATIENCE_MS)
    page.locator("#call").click()
    expect(page.locator("#status")).to_have_text("The call has ended.")
    expect(page.locator("#text")).to_be_enabled()
    context.close()
    assert errors == []


PARSER = """async () => {
  const { SseParser } = await import("/sse.js");
  const { SampleQueue } = await import("/sample-queue.js");
  const { Resampler } = await import("/audio.js");
  const lower = (rate, ...pieces) => {
    const to = new Resampler(rate, 24000);
    return pieces.flatMap((piece) => [...to.add(piece)]);
  };
  const whole = ": hi\\r\\ndata: a\\r\\ndata: b\\r\\n\\r\\ndata:c\\n\\ndata: [DONE]\\n\\n";
  const cuts = [];
  for (let cut = 0; cut <= whole.length; cut++) {
    const parser = new SseParser();
    cuts.push([...parser.push(whole.slice(0, cut)), ...parser.push(whole.slice(cut))].join("|"));
  }
  const queue = new SampleQueue(4);
  const out = [];
  const read = () => { const part = new Float32Array(2); queue.read(part); out.push(...part); };
  queue.push(Float32Array.of(1, 2, 3)); read();
  queue.push(Float32Array.of(4, 5)); read(); read(); read(); read();
  queue.push(Float32Array.of(6)); read(); queue.end(); read();
  const halved = lower(48000, [1, 3, 5], [7, 9]);
  const other = lower(44100, new Float32Array(44100).fill(0.5));
  const range = [other.length, Math.min(...other), Math.max(...other)];
  return { halved, range, cuts: [...new Set(cuts)], out, gaps: queue.gaps, done: queue.done };
}"""


def test_the_parser_and_the_queue(page: Page) -> None:
    found = page.evaluate(PARSER)
    assert found["cuts"] == ["a\nb|c|[DONE]"]
    assert found["halved"] == [2, 6]
    assert found["range"][0] in (23_999, 24_000)
    assert found["range"][1:] == pytest.approx([0.5, 0.5])
    # Playback starts when four samples are queued and runs dry after five. It then waits again, until end() is called.
    assert found["out"] == [0, 0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 6, 0]
    assert (found["gaps"], found["done"]) == (1, True)
