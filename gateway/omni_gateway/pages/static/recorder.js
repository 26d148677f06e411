// Records the microphone into a WAV file.
import { wavOf } from "./audio.js";
import { Microphone, peakOf } from "./microphone.js";

const RATE = 16000; // the usual input rate of speech models; at a microphone's own 48 kHz the file would be three times as large

export class Recorder {
  #pieces = [];

  /** Requests the microphone and starts recording. onLevel: called with the peak of each 50 ms, 0 to 1. Throws what getUserMedia throws. */
  static async open(onLevel) {
    const recorder = new Recorder();
    recorder.microphone = await Microphone.open((piece) => {
      recorder.#pieces.push(piece);
      onLevel(peakOf(piece));
    });
    return recorder;
  }

  /** Stops recording. Returns the recording as a WAV file at 16 kHz. */
  async stop() {
    await this.microphone.stop();
    const { sampleRate } = this.microphone;
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
    this.microphone.close();
  }
}
