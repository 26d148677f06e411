// Records the microphone into a WAV file.
import { wavOf } from "./audio.js";

const RATE = 16000; // the usual input rate of speech models; at a microphone's own 48 kHz the file would be three times as large

/** Returns whether the browser offers a microphone here. Browsers do so only over https and on localhost. */
export function canRecord() {
  return Boolean(navigator.mediaDevices?.getUserMedia && globalThis.AudioWorkletNode);
}

export class Recorder {
  #pieces = [];

  /** Requests the microphone and starts recording. onLevel: called with the peak of each 50 ms, 0 to 1. Throws what getUserMedia throws. */
  static async open(onLevel) {
    const recorder = new Recorder();
    const constraints = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };
    recorder.stream = await navigator.mediaDevices.getUserMedia({ audio: constraints });
    recorder.context = new AudioContext();
    await recorder.context.audioWorklet.addModule(new URL("./recorder-worklet.js", import.meta.url));
    const source = recorder.context.createMediaStreamSource(recorder.stream);
    recorder.node = new AudioWorkletNode(recorder.context, "recorder", { numberOfOutputs: 1, channelCount: 1, channelCountMode: "explicit" });
    recorder.ended = new Promise((resolve) => {
      recorder.node.port.onmessage = ({ data }) => {
        if (data === "end") return resolve();
        recorder.#pieces.push(data);
        onLevel(data.reduce((loudest, sample) => Math.max(loudest, Math.abs(sample)), 0));
      };
    });
    // The recorder outputs silence. It is connected because browsers may not run a node without a destination.
    source.connect(recorder.node).connect(recorder.context.destination);
    return recorder;
  }

  /** Stops recording. Returns the recording as a WAV file at 16 kHz. */
  async stop() {
    this.node.port.postMessage("stop");
    await this.ended;
    const { sampleRate } = this.context;
    this.close();
    const count = this.#pieces.reduce((sum, piece) => sum + piece.length, 0);
    if (!count) throw new Error("The microphone gave no audio.");
    const offline = new OfflineAudioContext(1, Math.ceil((count * RATE) / sampleRate), RATE);
    const buffer = new AudioBuffer({ length: count, numberOfChannels: 1, sampleRate });
    let at = 0;
    for (const piece of this.#pieces) {
      buffer.copyToChannel(piece, 0, at);
      at += piece.length;
    }
    const source = new AudioBufferSourceNode(offline, { buffer });
    source.connect(offline.destination);
    source.start();
    const rendered = await offline.startRendering();
    return new File([wavOf([rendered.getChannelData(0)], RATE)], "recording.wav", { type: "audio/wav" });
  }

  /** Releases the microphone. */
  close() {
    for (const track of this.stream.getTracks()) track.stop();
    this.context.close();
  }
}
