// Speech that plays while it arrives: one worklet for each answer, in an audio context of the speech's own rate.

const START_S = 0.08; // held before playback begins: a few network packets' worth of jitter

let context = null;
let ready = null;

/** Whether the browser gives AudioWorklet here. It does so on https and on localhost only. */
export function canStream() {
  return Boolean(globalThis.AudioContext && globalThis.AudioWorkletNode && globalThis.isSecureContext);
}

/** Makes the context. Call while a key or button is being handled: browsers let pages speak only then. */
export function unlock(sampleRate = 24000) {
  if (!canStream()) return;
  if (context && context.sampleRate !== sampleRate) {
    context.close();
    context = null;
  }
  if (!context) {
    context = new AudioContext({ sampleRate, latencyHint: "interactive" });
    ready = context.audioWorklet.addModule(new URL("./player-worklet.js", import.meta.url));
  }
  if (context.state === "suspended") context.resume();
}

export class Player {
  #node = null;
  #waiting = [];
  #stopped = false;

  /** onProgress: called with {played, gaps, done}; played in samples. */
  constructor(onProgress, sampleRate = 24000) {
    unlock(sampleRate);
    ready.then(() => {
      if (this.#stopped) return;
      this.#node = new AudioWorkletNode(context, "player", {
        numberOfInputs: 0,
        outputChannelCount: [1],
        processorOptions: { start: Math.round(START_S * sampleRate) },
      });
      this.#node.port.onmessage = ({ data }) => {
        if (this.#stopped) return;
        onProgress(data);
        if (data.done) this.stop();
      };
      this.#node.connect(context.destination);
      for (const item of this.#waiting) this.#node.port.postMessage(item);
      this.#waiting = [];
    });
  }

  /** samples: Float32Array, copied. */
  push(samples) {
    this.#post(samples);
  }

  end() {
    this.#post("end");
  }

  /** Falls silent at once. */
  stop() {
    this.#stopped = true;
    this.#node?.disconnect();
    this.#node?.port.close();
  }

  #post(item) {
    if (this.#stopped) return;
    if (this.#node) this.#node.port.postMessage(item);
    else this.#waiting.push(item);
  }
}
