// Plays the samples that the page sends. It receives Float32Arrays of samples and "end", and posts {played, gaps, done}.
import { SampleQueue } from "./sample-queue.js";

const REPORT_FRAMES = 1200; // 50 ms at 24 kHz

class Player extends AudioWorkletProcessor {
  constructor({ processorOptions }) {
    super();
    this.queue = new SampleQueue(processorOptions.start);
    this.reported = -1;
    this.port.onmessage = ({ data }) => (data === "end" ? this.queue.end() : this.queue.push(data));
  }

  process(_inputs, [[output]]) {
    const first = this.queue.played === 0;
    const count = this.queue.read(output);
    const { played, gaps, done } = this.queue;
    if (done || (first && count) || played - this.reported >= REPORT_FRAMES) {
      this.reported = played;
      this.port.postMessage({ played, gaps, done });
    }
    return !done;
  }
}

registerProcessor("player", Player);
