// Plays speech while it arrives: one worklet per answer, in an audio context with the sample rate of the speech.

const START_S = 0.08; // buffered before playback begins, to absorb network jitter

let context = null;
let ready = null;

/** Returns whether the browser offers AudioWorklet here. Browsers do so only over https and on localhost. */
export function canStream() {
  return Boolean(globalThis.AudioContext && globalThis.AudioWorkletNode && globalThis.isSecureContext);
}

/** Creates the audio context. Call it in a handler of a key or button: browsers let pages start audio only there. */
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

  /** onProgress: called with {played, gaps, done}; played is the number of samples. */
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

  /** samples: Float32Array, which is copied. */
  push(samples) {
    this.#post(samples);
  }

  end() {
    this.#post("end");
  }

  /** Stops playback immediately. */
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
