// Draws a trace: one lane per stage, and one for the audio that you hear, on a common time axis.
import { ticksOf } from "./trace.js";

const NAMES = { input: "input", queue: "queue", prefill: "prefill", generate: "generate", finish: "finish", transfer: "transfer" };
export const PEAK_MS = 20;

const make = (name, className = "", text = "") => Object.assign(document.createElement(name), { className, textContent: text });
export const formatMs = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`);

export class Lanes {
  #rows = new Map();

  /** speaks: whether there is a lane for the audio that you hear. */
  constructor(stages, speaks) {
    this.element = make("div", "lanes");
    this.element.setAttribute("role", "img");
    this.rows = this.element.appendChild(make("div", "rows"));
    for (const stage of stages) this.#row(stage);
    if (speaks) {
      this.heard = this.#row("you hear", "heard");
      this.canvas = this.heard.appendChild(make("canvas"));
    }
    this.axis = this.element.appendChild(make("div", "axis"));
    this.legend = this.element.appendChild(make("div", "legend"));
    this.element.setAttribute("aria-label", `Stages: ${stages.join(", ")}`);
  }

  draw(trace, now) {
    const total = trace.extent(now) * 1.01;
    const place = (element, from, to) => {
      element.style.left = `${(from / total) * 100}%`;
      element.style.width = `${Math.max(((to - from) / total) * 100, 0.15)}%`;
      return element;
    };
    const seen = new Set();
    for (const lane of trace.lanes.values()) {
      const track = this.#row(lane.stage);
      track.replaceChildren();
      for (const span of lane.spans) {
        seen.add(span.phase);
        const bar = place(make("span", `bar ${span.phase}`), span.from, span.to);
        bar.title = `${lane.stage}: ${NAMES[span.phase]}, ${formatMs(span.to - span.from)}`;
        track.append(bar);
      }
      if (!lane.done && lane.begun !== null) track.append(place(make("span", "bar live"), lane.begun, trace.ended ?? trace.at(now)));
      if (lane.transfer) {
        seen.add("transfer");
        track.append(place(make("span", "bar transfer"), lane.transfer.from, lane.transfer.to));
      }
      for (const mark of lane.marks) {
        const tick = make("span", "mark");
        tick.style.left = `${(mark / total) * 100}%`;
        track.append(tick);
      }
    }
    this.axis.replaceChildren(
      ...ticksOf(total).map((ms) => {
        const tick = make("span", "", ms === 0 ? "0" : ms % 1000 === 0 ? `${ms / 1000} s` : total < 2000 ? `${ms} ms` : `${(ms / 1000).toFixed(1)} s`);
        tick.style.left = `${(ms / total) * 100}%`;
        return tick;
      }),
    );
    if (seen.size !== this.legend.childElementCount) {
      this.legend.replaceChildren(...Object.keys(NAMES).filter((phase) => seen.has(phase)).map((phase) => make("span", phase, NAMES[phase])));
    }
    if (this.heard) this.#drawHeard(trace, total);
  }

  /** Sets the text that screen readers read instead of the picture. */
  describe(text) {
    this.element.setAttribute("aria-label", text);
  }

  #row(stage, kind = "") {
    if (!this.#rows.has(stage)) {
      const row = make("div", `lane ${kind}`);
      const track = make("div", "track");
      row.append(make("span", "name", stage), track);
      this.rows.insertBefore(row, this.heard?.parentElement ?? null);
      this.#rows.set(stage, track);
    }
    return this.#rows.get(stage);
  }

  #drawHeard(trace, total) {
    const { canvas } = this;
    const ratio = globalThis.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const from = trace.heardFrom ?? trace.firstAudio;
    if (from === null) return;
    const style = getComputedStyle(canvas);
    const played = trace.heardFrom === null ? 0 : trace.heardMs / PEAK_MS;
    const step = (PEAK_MS / total) * width;
    const group = Math.max(1, Math.ceil(2.5 / step));
    const loudest = Math.max(0.05, ...trace.peaks);
    for (let index = 0; index < trace.peaks.length; index += group) {
      const peak = Math.max(...trace.peaks.slice(index, index + group)) / loudest;
      const tall = Math.max(1.5, peak * (height - 2));
      pen.fillStyle = index < played ? style.getPropertyValue("--ink") : style.getPropertyValue("--faint");
      const x = (from / total) * width + index * step;
      if (x > width) break;
      pen.fillRect(x, (height - tall) / 2, Math.max(1, step * group - 1), tall);
    }
  }
}
