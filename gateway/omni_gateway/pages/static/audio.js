// Converts between samples, bytes and WAV files. Pure functions.

/** Returns the samples, -1 to 1, of signed 16-bit little-endian PCM. A trailing odd byte is ignored. */
export function floatsOf(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const samples = new Float32Array(bytes.byteLength >> 1);
  for (let index = 0; index < samples.length; index++) samples[index] = view.getInt16(index * 2, true) / 32768;
  return samples;
}

/** Returns the bytes of a mono 16-bit WAV file. pieces: arrays of samples, -1 to 1. */
export function wavOf(pieces, sampleRate) {
  const count = pieces.reduce((sum, piece) => sum + piece.length, 0);
  const bytes = new Uint8Array(44 + count * 2);
  const view = new DataView(bytes.buffer);
  const write = (at, text) => [...text].forEach((letter, index) => view.setUint8(at + index, letter.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, 36 + count * 2, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, sampleRate, true);
  view.setUint32(28, sampleRate * 2, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  write(36, "data");
  view.setUint32(40, count * 2, true);
  let at = 44;
  for (const piece of pieces) {
    for (const sample of piece) {
      view.setInt16(at, Math.max(-32768, Math.min(32767, Math.round(sample * 32768))), true);
      at += 2;
    }
  }
  return bytes;
}

/** Returns the peak, 0 to 1, of each group of `width` samples, for drawing a waveform. */
export function peaksOf(samples, width) {
  const peaks = [];
  for (let at = 0; at < samples.length; at += width) {
    let peak = 0;
    for (let index = at; index < Math.min(at + width, samples.length); index++) peak = Math.max(peak, Math.abs(samples[index]));
    peaks.push(peak);
  }
  return peaks;
}

/** Returns samples, -1 to 1, as signed 16-bit little-endian PCM in base64. */
export function pcmBase64Of(samples) {
  const view = new DataView(new ArrayBuffer(samples.length * 2));
  samples.forEach((sample, index) => view.setInt16(index * 2, Math.max(-32768, Math.min(32767, Math.round(sample * 32768))), true));
  return btoa(String.fromCharCode(...new Uint8Array(view.buffer)));
}

/** Lowers the sample rate of a stream of samples: each one returned is the mean of those that it stands for. */
export class Resampler {
  #ratio;
  #next = 0; // samples of the input until the next one of the output ends
  #sum = 0;
  #weight = 0;

  constructor(from, to) {
    this.#ratio = from / to;
    this.#next = this.#ratio;
  }

  add(samples) {
    const found = [];
    for (const sample of samples) {
      let left = 1;
      while (this.#next <= left) {
        found.push((this.#sum + sample * this.#next) / (this.#weight + this.#next));
        left -= this.#next;
        this.#sum = this.#weight = 0;
        this.#next = this.#ratio;
      }
      this.#sum += sample * left;
      this.#weight += left;
      this.#next -= left;
    }
    return Float32Array.from(found);
  }
}

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

/** Returns the content of a Blob in base64. */
export async function base64Of(blob) {
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
  return url.slice(url.indexOf(",") + 1);
}
