// Sends the microphone's samples to the page, 50 ms at a time.

class Recorder extends AudioWorkletProcessor {
  constructor() {
    super();
    this.buffer = new Float32Array(Math.round(sampleRate / 20));
    this.filled = 0;
    // On "stop": send the remaining samples, then "end".
    this.port.onmessage = () => this.port.postMessage(this.buffer.slice(0, this.filled)) || this.port.postMessage("end");
  }

  process([[input]]) {
    for (let at = 0; input && at < input.length; ) {
      const part = input.subarray(at, at + this.buffer.length - this.filled);
      this.buffer.set(part, this.filled);
      this.filled += part.length;
      at += part.length;
      if (this.filled === this.buffer.length) {
        this.port.postMessage(this.buffer.slice());
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("recorder", Recorder);
