// Parses server-sent events by the HTML standard: comments are skipped, and the data lines of one event are joined.

export class SseParser {
  #rest = "";
  #data = [];

  /** Returns the data of the events that text completes. text may end anywhere, even inside a line ending. */
  push(text) {
    const events = [];
    this.#rest += text;
    // A carriage return at the end may be half of a line ending.
    const end = this.#rest.endsWith("\r") ? this.#rest.length - 1 : this.#rest.length;
    const lines = this.#rest.slice(0, end).split(/\r\n|\n|\r/);
    this.#rest = lines.pop() + this.#rest.slice(end);
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length) events.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
    return events;
  }
}

/** Yields the data of each event of a response's body. */
export async function* readEvents(body) {
  const parser = new SseParser();
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(value);
    }
  } finally {
    await reader.cancel().catch(() => {}); // leaving the loop early cancels the request
  }
}
