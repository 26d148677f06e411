// A call: the microphone and the answers' speech over one WebSocket (/v1/realtime), with a transcript. Who speaks interrupts.
import { Resampler, bytesOf, floatsOf, pcmBase64Of } from "./audio.js";
import { Microphone, peakOf } from "./microphone.js";
import { Player } from "./player.js";

export const RATE = 24000; // of both directions

/** The speech of one answer, in samples. */
class Answer {
  constructor(itemId) {
    Object.assign(this, { itemId, played: 0, received: 0, complete: false });
    this.player = new Player(({ played }) => (this.played = played), RATE);
  }
}

export class Call {
  #socket = null;
  #microphone = null;
  #answer = null;
  #cut = ""; // id of the answer that was interrupted
  #lines = new Map(); // by the id of the item

  /** place: element that gets the transcript. on: {state(text), ended(why)}. */
  constructor(place, on) {
    Object.assign(this, { place, on });
  }

  /** Opens the microphone and the session. onLevel: as Recorder. Throws what getUserMedia throws. */
  async open(api, model, session, onLevel) {
    let resampler = null;
    this.#microphone = await Microphone.open((piece) => {
      onLevel(peakOf(piece));
      if (this.#socket?.readyState !== WebSocket.OPEN) return;
      this.#send({ type: "input_audio_buffer.append", audio: pcmBase64Of(resampler.add(piece)) });
    });
    resampler = new Resampler(this.#microphone.sampleRate, RATE);
    this.#socket = api.call(model);
    this.#socket.onmessage = ({ data }) => this.#receive(JSON.parse(data), session);
    this.#socket.onclose = ({ code, reason }) => this.close(code === 1000 ? "" : reason || "The connection was lost, or the gateway refused the call.");
  }

  /** Ends the call. why: shown to the user; "" for nothing. */
  close(why = "") {
    if (!this.#microphone) return;
    this.#microphone.close();
    this.#microphone = null;
    this.#answer?.player.stop();
    this.#socket?.close(1000);
    this.on.ended(why);
  }

  #send(event) {
    this.#socket.send(JSON.stringify(event));
  }

  #receive(event, session) {
    const { type, item_id: id } = event;
    if (type === "session.created") this.#send({ type: "session.update", session });
    else if (type === "session.updated") this.on.state("Speak. Speaking again interrupts the answer.");
    else if (type === "input_audio_buffer.speech_started") this.#interrupt();
    else if (type === "input_audio_buffer.committed") this.#line(id, "said").textContent = "…";
    else if (type.endsWith("input_audio_transcription.completed")) this.#line(id, "said").textContent = event.transcript;
    else if (type === "response.output_audio_transcript.delta" || type === "response.output_text.delta") this.#line(id, "answer").textContent += event.delta;
    else if (type === "response.output_audio.delta") this.#play(id, event.delta);
    else if (type === "response.output_audio.done") this.#complete(id);
    else if (type === "conversation.item.retrieved") this.#line(id ?? event.item.id, "answer").textContent = event.item.content[0]?.transcript ?? "";
    else if (type === "response.done" && event.response.status === "failed") this.on.state(event.response.status_details.error.message);
    else if (type === "error") this.on.state(event.error.message);
  }

  #play(itemId, delta) {
    if (itemId === this.#cut) return;
    if (this.#answer?.itemId !== itemId) {
      this.#answer?.player.stop();
      this.#answer = new Answer(itemId);
    }
    const samples = floatsOf(bytesOf(delta));
    this.#answer.received += samples.length;
    this.#answer.player.push(samples);
  }

  #complete(itemId) {
    if (this.#answer?.itemId !== itemId) return;
    this.#answer.complete = true;
    this.#answer.player.end();
  }

  /** Stops the answer's speech. The conversation, and the transcript, keep what was heard of it. */
  #interrupt() {
    const answer = this.#answer;
    this.#answer = null;
    if (!answer || (answer.complete && answer.played >= answer.received)) return;
    answer.player.stop();
    this.#cut = answer.itemId;
    this.#send({ type: "conversation.item.truncate", item_id: answer.itemId, content_index: 0, audio_end_ms: Math.floor((answer.played * 1000) / RATE) });
    this.#send({ type: "conversation.item.retrieve", item_id: answer.itemId });
  }

  /** Returns the line of an item. kind: "said" by the user, or an "answer". */
  #line(itemId, kind) {
    if (!this.#lines.has(itemId)) {
      const line = document.createElement("p");
      const element = kind === "said" ? document.createElement("div") : line;
      element.className = kind === "said" ? "question" : "answer";
      if (kind === "said") element.append(line);
      this.place.append(element);
      element.scrollIntoView({ block: "nearest" });
      this.#lines.set(itemId, line);
    }
    return this.#lines.get(itemId);
  }
}
