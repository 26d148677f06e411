// Runs OpenAI's unmodified client for Node with a gateway: node cases.js URL MODEL. Prints each case's result as JSON.
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });
const question = { role: "user", content: "Tell me what the weather is like." };
const asked = { model, messages: [question], seed: 5, max_completion_tokens: 12 };
const spoken = { ...asked, seed: 3, max_completion_tokens: 8, modalities: ["text", "audio"] };

async function refused(call) {
  try {
    await call();
  } catch (error) {
    return { name: error.constructor.name, status: error.status, param: error.param, code: error.code };
  }
  return null;
}

const cases = {
  async models() {
    const found = [];
    for await (const one of client.models.list()) found.push(one.id);
    return found;
  },
  async text() {
    const answer = await client.chat.completions.create(asked);
    return { text: answer.choices[0].message.content, tokens: answer.usage.completion_tokens };
  },
  async streamed_text() {
    const stream = await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
    let text = "";
    let tokens = 0;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      tokens = chunk.usage?.completion_tokens ?? tokens;
    }
    return { text, tokens };
  },
  // The client's helper that joins a stream's chunks also checks their form.
  async gathered_text() {
    const answer = await client.chat.completions.stream(asked).finalChatCompletion();
    return { text: answer.choices[0].message.content, finish: answer.choices[0].finish_reason };
  },
  async spoken() {
    const answer = await client.chat.completions.create({ ...spoken, audio: { voice: "alloy", format: "pcm16" } });
    const audio = answer.choices[0].message.audio;
    return { text: audio.transcript, pcm: audio.data };
  },
  async streamed_speech() {
    const stream = await client.chat.completions.create({
      ...spoken,
      stream: true,
      audio: { voice: "alloy", format: "pcm16" },
    });
    const parts = [];
    let text = "";
    for await (const chunk of stream) {
      const audio = chunk.choices[0]?.delta.audio;
      text += audio?.transcript ?? "";
      if (audio?.data) parts.push(Buffer.from(audio.data, "base64"));
    }
    return { text, pcm: Buffer.concat(parts).toString("base64") };
  },
  async speech() {
    const answer = await client.audio.speech.create({
      model,
      voice: "alloy",
      input: "Good morning!",
      response_format: "pcm",
      seed: 3,
    });
    return { type: answer.headers.get("content-type"), pcm: Buffer.from(await answer.arrayBuffer()).toString("base64") };
  },
  async unknown_model() {
    return refused(() => client.chat.completions.create({ ...asked, model: "nobody" }));
  },
  async unsupported_field() {
    return refused(() => client.chat.completions.create({ ...asked, n: 2 }));
  },
  async unsupported_endpoint() {
    return refused(() => client.responses.create({ model, input: "Hello" }));
  },
};

const gave = {};
for (const [name, run] of Object.entries(cases)) gave[name] = await run();
console.log(JSON.stringify(gave));
