// The buffer between the network and the loudspeaker, which runs in the audio thread. It has no dependencies, so tests can run
// it.

/** Queues samples. Playback begins when enough samples are buffered. The same applies after the queue has run empty. */
export class SampleQueue {
  #chunks = [];
  #offset = 0;
  #playing = false;
  #ended = false;

  /** start: samples to buffer before playback begins. Each time the queue runs empty, start doubles, up to most. */
  constructor(start, most = start * 8) {
    this.start = start;
    this.most = most;
    this.held = 0;
    this.played = 0;
    this.gaps = 0;
  }

  push(samples) {
    if (!samples.length) return;
    this.#chunks.push(samples);
    this.held += samples.length;
  }

  /** Notes that no more samples follow: the buffered ones are played, however few. */
  end() {
    this.#ended = true;
  }

  get done() {
    return this.#ended && this.held === 0;
  }

  /** Fills output with the next samples, and the rest with silence. Returns the number of samples played. */
  read(output) {
    if (!this.#playing && this.held && (this.held >= this.start || this.#ended)) this.#playing = true;
    let at = 0;
    while (this.#playing && at < output.length && this.#chunks.length) {
      const chunk = this.#chunks[0];
      const part = chunk.subarray(this.#offset, this.#offset + output.length - at);
      output.set(part, at);
      at += part.length;
      this.#offset += part.length;
      if (this.#offset === chunk.length) {
        this.#chunks.shift();
        this.#offset = 0;
      }
    }
    output.fill(0, at);
    this.held -= at;
    this.played += at;
    if (this.#playing && this.held === 0 && !this.#ended) {
      this.#playing = false;
      this.gaps += 1;
      this.start = Math.min(this.start * 2, this.most);
    }
    return at;
  }
}
