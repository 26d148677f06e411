// A client of the gateway's public API (/v1), with fetch and server-sent events. The page uses nothing else of the gateway.
import { readEvents } from "./sse.js";

/** An error that the gateway answered with, in OpenAI's shape. */
export class ApiError extends Error {
  constructor(status, { message, code, param } = {}, requestId = "", retryAfter = "") {
    super(message || `The gateway answered ${status}.`);
    Object.assign(this, { status, code: code || "", param: param || "", requestId, retryAfter });
  }
}

export class Api {
  /** key: function that returns the API key, "" if there is none. It is called for each request; the key is not stored. */
  constructor(key) {
    this.key = key;
  }

  async models() {
    return (await this.#json("/v1/models")).data;
  }

  /** Returns the model's stages, modalities and voices. */
  async model(id) {
    return this.#json(`/v1/models/${id.split("/").map(encodeURIComponent).join("/")}`);
  }

  /** Returns the WebSocket of a call. Browsers send no header with one, so the key is a sub-protocol. */
  call(model) {
    const url = new URL(`/v1/realtime?model=${encodeURIComponent(model)}`, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const key = this.key();
    return new WebSocket(url, ["realtime", ...(key ? [`openai-insecure-api-key.${key}`] : [])]);
  }

  /** Yields the chunks of a streamed chat completion. Throws ApiError; TypeError if the gateway is unreachable. */
  async *chat(body, signal) {
    const response = await this.#fetch("/v1/chat/completions", {
      method: "POST",
      body: JSON.stringify(body),
      headers: { "content-type": "application/json" },
      signal,
    });
    for await (const data of readEvents(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(200, chunk.error, response.headers.get("x-request-id"));
      yield chunk;
    }
    throw new ApiError(200, { message: "The answer was interrupted.", code: "connection_lost" });
  }

  async #json(path) {
    return (await this.#fetch(path)).json();
  }

  async #fetch(path, options = {}) {
    const key = this.key();
    const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
    const response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
    if (response.ok) return response;
    const { error } = await response.json().catch(() => ({}));
    throw new ApiError(
      response.status, error, response.headers.get("x-request-id"), response.headers.get("retry-after"),
    );
  }
}
