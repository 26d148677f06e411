// A call of ten turns by OpenAI's unmodified agents SDK: cases.js URL MODEL PCM. PCM: file with a spoken sentence, 24 kHz; empty: nobody speaks.
// Prints as JSON what the client saw.
import { readFileSync } from "node:fs";
import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession, tool } from "@openai/agents-realtime";
import { z } from "zod";
import { parseRealtimeEvent } from "./node_modules/@openai/agents-realtime/dist/openaiRealtimeEvents.mjs";

const [url, model, pcm] = process.argv.slice(2);
const TURNS = 10;
const PIECE = 4800; // 100 ms
const seen = [], unknown = [], errors = [], cities = [];
const waiting = [];
let audio = 0;

const weather = tool({
  name: "weather",
  description: "Tells the weather.",
  parameters: z.object({ city: z.enum(["Ulm", "Bonn"]) }),
  execute: async ({ city }) => {
    cities.push(city);
    return "sunny";
  },
});
const agent = new RealtimeAgent({ name: "caller", instructions: "Be brief.", tools: [weather] });
const transport = new OpenAIRealtimeWebSocket();
const session = new RealtimeSession(agent, { transport, model, config: { toolChoice: "auto" } });

session.on("transport_event", (event) => {
  if (typeof event.event_id !== "string") return; // the SDK's own
  seen.push(event);
  if (parseRealtimeEvent({ data: JSON.stringify(event) }).isGeneric) unknown.push(event.type);
  for (const one of [...waiting]) {
    if (!one.test(event)) continue;
    waiting.splice(waiting.indexOf(one), 1);
    one.resolve(event);
  }
});
session.on("audio", (event) => (audio += event.data.byteLength));
session.on("error", ({ error }) => errors.push(error?.error?.code ?? String(error?.message ?? error)));

/** Returns the next event for which test is true. */
const next = (test) => new Promise((resolve) => waiting.push({ test, resolve }));
const done = () => next((event) => event.type === "response.done");
const speak = async (data) => {
  for (let at = 0; at < data.length; at += PIECE) {
    const piece = data.subarray(at, at + PIECE);
    session.sendAudio(new Uint8Array(piece).buffer);
  }
};

await session.connect({ apiKey: "none", url: `${url.replace(/^http/, "ws")}/realtime?model=${model}` });
if (!seen.some((event) => event.type === "session.updated")) await next((event) => event.type === "session.updated");
const speech = readFileSync(pcm);
for (let turn = 0; turn < TURNS; turn++) {
  if (turn % 5 === 3 && speech.length) {
    const ended = done();
    await speak(speech);
    await ended;
  } else if (turn % 5 === 4) {
    const begun = next((event) => event.type === "response.output_audio_transcript.delta");
    const ended = done();
    session.sendMessage("Tell me a very long story.");
    await begun;
    session.interrupt();
    await ended;
  } else if (turn % 5 === 2) {
    const ended = done();
    transport.sendEvent({ type: "conversation.item.create", item: { type: "message", role: "user", content: [{ type: "input_text", text: "What is the weather in Ulm?" }] } });
    transport.sendEvent({ type: "response.create", response: { tool_choice: "required", max_output_tokens: 400 } });
    const { response } = await ended;
    // The SDK asks for an answer to the results.
    if (response.output.some((item) => item.type === "function_call" && item.status === "completed")) await done();
  } else {
    const ended = done();
    session.sendMessage(`This is turn ${turn}.`);
    await ended;
  }
}
const refused = next((event) => event.type === "error");
transport.sendEvent({ type: "conversation.item.retrieve", item_id: "nobody", event_id: "mine" });
const error = (await refused).error;
const history = session.history.map((item) => item.type === "message" ? `${item.role} ${item.status}` : item.type);
session.close();
const gave = { events: seen, unknown, errors, cities, audio, history, error: [error.code, error.event_id] };
process.stdout.write(JSON.stringify(gave), () => process.exit(0)); // only once all of it is written
