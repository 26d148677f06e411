// Shows one question and its answer on the page.
import { ApiError } from "./api.js";
import { Lanes, PEAK_MS, formatMs } from "./lanes.js";
import { Player, canStream } from "./player.js";
import { bytesOf, floatsOf, peaksOf, wavOf } from "./audio.js";
import { curlOf, pythonProgram } from "./snippets.js";
import { Trace } from "./trace.js";

export const RATE = 24000; // sample rate of pcm16 in OpenAI's API and in the built-in models

export class Turn {
  #player = null;
  #pieces = [];
  #frame = 0;
  #abort = new AbortController();

  constructor(template, stages, body, files) {
    this.element = template.content.firstElementChild.cloneNode(true);
    this.part = (name) => this.element.querySelector(`[data-part="${name}"]`);
    this.body = body;
    this.files = files;
    this.speaks = Boolean(body.audio);
    this.text = "";
    this.heard = ""; // what the model heard of the user's audio
    this.answering = ""; // the stage that writes the text; empty: the first one
    this.gaps = 0;
    this.cut = []; // stages that reached their maximum length
    this.lanes = new Lanes(stages, this.speaks);
    this.part("lanes").append(this.lanes.element);
    this.trace = new Trace(stages, performance.now());
  }

  /** Shows the user's message. attachments: [{file, url}] */
  showQuestion(text, attachments) {
    this.typed = text;
    this.#showSaid();
    for (const { file, url } of attachments) {
      const shown = file.type.startsWith("image/") ? new Image() : document.createElement("audio");
      shown.src = url;
      if (shown instanceof Image) shown.alt = file.name;
      else shown.controls = true;
      this.part("media").append(shown);
    }
  }

  #showSaid() {
    const said = [this.typed, this.heard.trim()].filter(Boolean).join("\n");
    this.part("said").textContent = said;
    this.part("said").hidden = !said;
  }

  showRequest(origin, hasKey) {
    const snippets = { curl: curlOf(origin, this.body, this.files, hasKey), python: pythonProgram(origin, this.body, this.files, hasKey, RATE) };
    const tabs = [...this.element.querySelectorAll('[role="tab"]')];
    const show = (name) => {
      for (const tab of tabs) {
        tab.setAttribute("aria-selected", String(tab.dataset.snippet === name));
        tab.tabIndex = tab.dataset.snippet === name ? 0 : -1;
      }
      this.part("code").textContent = snippets[name];
    };
    tabs.forEach((tab, index) => {
      tab.onclick = () => show(tab.dataset.snippet);
      tab.onkeydown = ({ key }) => {
        if (key !== "ArrowLeft" && key !== "ArrowRight") return;
        const other = tabs[(index + 1) % tabs.length];
        other.focus();
        show(other.dataset.snippet);
      };
    });
    this.part("copy").onclick = async () => {
      await navigator.clipboard.writeText(this.part("code").textContent);
      this.part("copy").textContent = "Copied";
      setTimeout(() => (this.part("copy").textContent = "Copy"), 1500);
    };
    show("curl");
  }

  /** Runs the request. Returns whether it was answered. */
  async run(api) {
    this.element.dataset.state = "running";
    this.#animate();
    if (this.speaks && canStream()) this.#player = this.#play();
    try {
      for await (const chunk of api.chat(this.body, this.#abort.signal)) this.#take(chunk);
      this.element.dataset.state = "done";
      return true;
    } catch (error) {
      this.#player?.stop();
      this.#player = null;
      this.element.dataset.state = error.name === "AbortError" ? "stopped" : "failed";
      if (error.name !== "AbortError") this.#showError(error);
      else this.#note("Stopped.");
      if (error instanceof ApiError) this.error = error;
      return false;
    } finally {
      this.trace.ended = this.trace.at(performance.now());
      this.#player?.end();
      this.#finish();
    }
  }

  /** Stops the request and the playback. */
  stop() {
    this.#abort.abort();
    this.#player?.stop();
    this.#player = null;
    this.#buttons();
  }

  get running() {
    return this.element.dataset.state === "running";
  }

  get isPlaying() {
    return this.#player !== null;
  }

  #take(chunk) {
    const now = performance.now();
    if (chunk.stage) {
      const { name, event, accepted_unix_ms: unix, timings } = chunk.stage;
      if (event === "accepted") this.trace.accepted(name, unix, now);
      else this.trace.finished(name, timings, now);
      if (chunk.stage.finish_reason === "length") this.cut.push(name);
    }
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) return;
    if (choice.finish_reason === "length") this.#note(describeCut(this.cut, this.answering || [...this.trace.lanes.keys()][0]));
    if (choice.delta.input_transcript) {
      this.heard += choice.delta.input_transcript;
      this.#showSaid();
    }
    const text = choice.delta.content || choice.delta.audio?.transcript;
    if (text) {
      this.trace.text(now);
      this.text += text;
    }
    if (choice.delta.audio?.data) {
      const samples = floatsOf(bytesOf(choice.delta.audio.data));
      if (!samples.length) return;
      this.trace.audio(now);
      this.trace.peaks.push(...peaksOf(samples, (RATE * PEAK_MS) / 1000));
      this.#pieces.push(samples);
      this.#player?.push(samples);
    }
  }

  #play() {
    return new Player(({ played, gaps, done }) => {
      this.trace.heard((played / RATE) * 1000, performance.now());
      this.gaps = gaps;
      this.#showFacts();
      if (done) {
        this.#player = null;
        this.#buttons();
      }
      this.lanes.draw(this.trace, performance.now());
    }, RATE);
  }

  // Text is shown once a frame, not once a token, so that the page stays responsive to Stop while a fast model writes.
  #showText() {
    const shown = this.part("text");
    if (shown.textContent.length !== this.text.length) shown.append(this.text.slice(shown.textContent.length));
  }

  #animate() {
    this.#showText();
    this.lanes.draw(this.trace, performance.now());
    this.#showFacts();
    this.#frame = this.running ? requestAnimationFrame(() => this.#animate()) : 0;
  }

  #finish() {
    cancelAnimationFrame(this.#frame);
    this.#showText();
    this.lanes.draw(this.trace, performance.now());
    this.#showFacts();
    const spans = [...this.trace.lanes.values()].filter((lane) => lane.spans.length);
    if (spans.length) this.lanes.describe(spans.map((lane) => `${lane.stage}: ${formatMs(lane.spans[0].from)} to ${formatMs(lane.spans.at(-1).to)}`).join("; "));
    this.part("tools").hidden = false;
    const has = this.#pieces.length > 0;
    this.part("replay").hidden = this.part("save").hidden = !has;
    if (!has) return;
    const url = URL.createObjectURL(new Blob([wavOf(this.#pieces, RATE)], { type: "audio/wav" }));
    Object.assign(this.part("save"), { href: url, download: "answer.wav" });
    if (!canStream()) {
      this.part("whole").hidden = false;
      this.part("whole").src = url;
      this.part("replay").hidden = true;
    }
    this.part("replay").onclick = () => {
      if (this.#player) {
        this.#player.stop();
        this.#player = null;
      } else {
        this.trace.heardFrom = null;
        this.#player = this.#play();
        for (const piece of this.#pieces) this.#player.push(piece);
        this.#player.end();
      }
      this.#buttons();
    };
    this.#buttons();
  }

  #buttons() {
    this.part("replay").textContent = this.#player ? "Stop" : "Play again";
    this.element.dispatchEvent(new Event("playback", { bubbles: true }));
  }

  #showFacts() {
    const { trace } = this;
    const samples = this.#pieces.reduce((sum, piece) => sum + piece.length, 0);
    const facts = [
      ["first text", trace.firstText, formatMs],
      ["first audio", this.speaks ? trace.firstAudio : null, formatMs],
      ["speech", samples ? (samples / RATE) * 1000 : null, formatMs],
      ["tokens", this.usage ? this.usage.completion_tokens : null, String],
      ["gaps", this.gaps || null, String],
    ];
    for (const [name, value, show] of facts) {
      const item = this.part(name);
      item.hidden = value === null;
      if (value !== null) item.querySelector("dd").textContent = show(value);
    }
  }

  #note(text) {
    this.part("note").textContent = text;
    this.part("note").hidden = false;
  }

  #showError(error) {
    const known = error instanceof ApiError;
    const part = this.part("error");
    part.hidden = false;
    part.querySelector("strong").textContent = known ? adviceFor(error) : "The gateway cannot be reached. Is it running?";
    part.querySelector("p").textContent = known ? error.message : String(error.message || error);
    const facts = known ? [error.status > 299 && `HTTP ${error.status}`, error.code, error.param && `field ${error.param}`, error.requestId] : [];
    part.querySelector("small").textContent = facts.filter(Boolean).join("  ·  ");
  }
}

/** Says what is missing. writing: the stage that writes the text; the others speak it. */
function describeCut(stages, writing) {
  const spoken = stages.filter((stage) => stage !== writing);
  if (!spoken.length) return "The answer reached its maximum length.";
  return `The speech was cut: ${spoken.join(" and ")} reached the maximum length. The text is ${stages.includes(writing) ? "cut too" : "complete"}.`;
}

function adviceFor({ status, retryAfter, code }) {
  if (status === 401) return "This gateway needs a valid API key. Enter one under Settings.";
  if (status === 429) return `Too many requests. Try again${retryAfter ? ` in ${retryAfter} s` : " soon"}.`;
  if (status === 404 && code === "model_not_found") return "This model no longer exists. Choose another one.";
  if (status === 413) return "That is too large for this gateway.";
  if (status === 503) return "The model cannot answer now. Try again in a moment.";
  if (status >= 500) return "The gateway failed.";
  return status === 200 ? "The answer was interrupted." : "The gateway refused the request.";
}
