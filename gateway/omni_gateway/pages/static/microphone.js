// The microphone: its samples as they come, for recordings and for calls.

/** Returns whether the browser offers a microphone here. Browsers do so only over https and on localhost. */
export function canRecord() {
  return Boolean(navigator.mediaDevices?.getUserMedia && globalThis.AudioWorkletNode);
}

/** Says why getUserMedia threw an error, and what to do. */
export function whyNot(error) {
  const known = { NotAllowedError: "The microphone is not allowed. Allow it for this page in the browser's address bar.", NotFoundError: "No microphone was found. Attach an audio file instead." };
  return known[error.name] ?? `The microphone cannot be used: ${error.message}`;
}

export class Microphone {
  /** Requests the microphone. onPiece: called with the samples of each 50 ms. Throws what getUserMedia throws. */
  static async open(onPiece) {
    const microphone = new Microphone();
    const constraints = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };
    microphone.stream = await navigator.mediaDevices.getUserMedia({ audio: constraints });
    microphone.context = new AudioContext();
    microphone.sampleRate = microphone.context.sampleRate;
    await microphone.context.audioWorklet.addModule(new URL("./recorder-worklet.js", import.meta.url));
    const source = microphone.context.createMediaStreamSource(microphone.stream);
    microphone.node = new AudioWorkletNode(microphone.context, "recorder", { numberOfOutputs: 1, channelCount: 1, channelCountMode: "explicit" });
    microphone.ended = new Promise((resolve) => {
      microphone.node.port.onmessage = ({ data }) => (data === "end" ? resolve() : onPiece(data));
    });
    // The recorder outputs silence. It is connected because browsers may not run a node without a destination.
    source.connect(microphone.node).connect(microphone.context.destination);
    return microphone;
  }

  /** Passes on the rest, and releases the microphone. */
  async stop() {
    this.node.port.postMessage("stop");
    await this.ended;
    this.close();
  }

  /** Releases the microphone. */
  close() {
    for (const track of this.stream.getTracks()) track.stop();
    if (this.context.state !== "closed") this.context.close();
  }
}

/** Returns the loudest sample, 0 to 1. */
export const peakOf = (piece) => piece.reduce((loudest, sample) => Math.max(loudest, Math.abs(sample)), 0);
