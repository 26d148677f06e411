// Connects the parts of the page: models and settings at the top, the conversation, the composer at the bottom.
import { Api } from "./api.js";
import { Call, RATE } from "./call.js";
import { Lanes } from "./lanes.js";
import { canStream, unlock } from "./player.js";
import { canRecord, whyNot } from "./microphone.js";
import { Recorder } from "./recorder.js";
import { base64Of } from "./audio.js";
import { Turn } from "./turn.js";

const $ = (id) => document.getElementById(id);
const api = new Api(() => $("key").value.trim());
const FORMATS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/flac": "flac", "audio/x-flac": "flac", "audio/ogg": "opus", "audio/opus": "opus" };

let model = null; // the answer of /v1/models/{id}
let messages = [];
let attachments = [];
let turn = null;
let recorder = null;
let call = null;

const status = (text) => ($("status").textContent = text);

// ---- models and voices

async function loadModels() {
  try {
    const models = (await api.models()).filter((one) => !one.root);
    const chosen = $("model").value;
    $("model").replaceChildren(...models.map(({ id }) => new Option(id, id, false, id === chosen)));
    $("model").disabled = !models.length;
    notice("models", models.length ? "" : "No model is ready. Reload this page when a pipeline is ready.");
    if (models.length) await chooseModel();
  } catch (error) {
    const key = error.status === 401;
    notice("models", key ? "This gateway needs an API key. Enter it under Settings." : `The models cannot be listed: ${error.message}`);
    if (key) openSettings();
  }
}

async function chooseModel() {
  const id = $("model").value;
  model = { id, modalities: ["text"], voices: [], stages: [] };
  try {
    model = await api.model(id);
    notice("model", model.random_weights ? "This model has random weights: it answers with random words, and speaks in no language. Use it to try the pipeline." : "");
  } catch (error) {
    notice("model", `${id}: ${error.message}`);
  }
  const speaks = model.modalities.includes("audio");
  $("voice").replaceChildren(...model.voices.map((voice) => new Option(voice, voice)));
  $("voice-field").hidden = !speaks || !model.voices.length;
  $("speak-field").hidden = !speaks;
  $("speak").checked = speaks;
  $("call").hidden = !speaks || !model.hears || !canRecord();
  const lanes = new Lanes(model.stages, speaks);
  $("idle-lanes").replaceChildren(lanes.element);
  $("send").disabled = false;
}

// ---- notices: problems with the gateway or the browser, and what to do about them

function notice(name, text) {
  let item = document.querySelector(`[data-notice="${name}"]`);
  if (!text) return item?.remove();
  if (!item) {
    item = $("notices").appendChild(document.createElement("p"));
    item.dataset.notice = name;
  }
  item.textContent = text;
}

function checkBrowser() {
  if (canStream() && canRecord()) return;
  const port = location.port || "80";
  notice("browser",
    globalThis.isSecureContext
      ? "This browser has no AudioWorklet or microphone: speech plays when it is complete, and audio can be attached as a file. A current Firefox, Chrome or Safari has both."
      : `Browsers give pages the microphone and gapless playback only over https or on localhost. Serve this gateway with TLS, or forward its port (kubectl port-forward, ssh -L ${port}:localhost:${port}) and open http://localhost:${port}. Until then speech plays when it is complete, and audio can be attached as a file.`);
  $("record").disabled = !canRecord();
}

// ---- the composer

function attach(files) {
  for (const file of files) {
    const isImage = /^image\/(png|jpeg)$/.test(file.type);
    if (!isImage && !FORMATS[file.type]) {
      status(`${file.name} cannot be sent: PNG, JPEG, WAV, MP3, FLAC and Ogg Opus can.`);
      continue;
    }
    attachments.push({ file, url: URL.createObjectURL(file) });
    status(`${file.name} is attached.`);
  }
  showAttachments();
}

function showAttachments() {
  $("attachments").replaceChildren(
    ...attachments.map((attachment, index) => {
      const chip = document.createElement("li");
      if (attachment.file.type.startsWith("image/")) chip.append(Object.assign(new Image(), { src: attachment.url, alt: "" }));
      chip.append(Object.assign(document.createElement("span"), { textContent: attachment.file.name }));
      const remove = Object.assign(document.createElement("button"), { type: "button", textContent: "×" });
      remove.setAttribute("aria-label", `Remove ${attachment.file.name}`);
      remove.onclick = () => {
        attachments.splice(index, 1);
        showAttachments();
        $("text").focus();
      };
      chip.append(remove);
      return chip;
    }),
  );
  $("attachments").hidden = !attachments.length;
}

async function contentOf(text, taken) {
  if (!taken.length) return { content: text, files: [] };
  const content = [];
  const files = [];
  for (const { file } of taken) {
    const base64 = await base64Of(file);
    files.push({ name: file.name, base64 });
    content.push(
      file.type.startsWith("image/")
        ? { type: "image_url", image_url: { url: `data:${file.type};base64,${base64}` } }
        : { type: "input_audio", input_audio: { data: base64, format: FORMATS[file.type] } },
    );
  }
  if (text) content.push({ type: "text", text });
  return { content, files };
}

function bodyOf(history) {
  const system = $("system").value.trim();
  const body = { model: model.id, messages: [...(system ? [{ role: "system", content: system }] : []), ...history] };
  if ($("speak").checked && model.modalities.includes("audio")) {
    body.modalities = ["text", "audio"];
    body.audio = { format: "pcm16", ...($("voice").value ? { voice: $("voice").value } : {}) };
  }
  if ($("seed").value) body.seed = Number($("seed").value);
  if ($("longest").value) body.max_completion_tokens = Number($("longest").value);
  return { ...body, stream: true, stream_options: { include_usage: true, include_stages: true } };
}

async function send() {
  const text = $("text").value.trim();
  if (!model || turn?.running || recorder || call || (!text && !attachments.length)) return;
  unlock();
  turn?.stop();
  const taken = attachments;
  attachments = [];
  $("text").value = "";
  resize();
  showAttachments();
  const { content, files } = await contentOf(text, taken);
  const history = [...messages, { role: "user", content }];
  turn = new Turn($("turn"), model.stages, bodyOf(history), (send.files = [...(send.files ?? []), ...files]));
  turn.answering = model.answering_stage ?? "";
  turn.showQuestion(text, taken);
  turn.showRequest(location.origin, Boolean($("key").value.trim()));
  $("idle").hidden = true;
  $("talk").append(turn.element);
  turn.element.scrollIntoView({ block: "start" });
  status("");
  const running = turn;
  const answering = running.run(api);
  showState();
  const answered = await answering;
  if (answered) {
    // What was heard stands for the recording: an entry that writes down what it hears reads only the last message.
    const heard = running.heard.trim();
    const said = heard ? [...messages, { role: "user", content: heard }] : history;
    messages = running.text ? [...said, { role: "assistant", content: running.text }] : said;
    $("spoken").textContent = running.text; // for screen readers: the complete text, not word by word
  } else {
    if (running.error?.status === 401) openSettings();
    if (!running.text) {
      $("text").value ||= text; // so that the user can send the message again
      attachments = attachments.length ? attachments : taken;
      showAttachments();
    }
  }
  $("new").hidden = false;
  showState();
}

function showState() {
  const busy = Boolean(turn?.running);
  $("send").hidden = busy;
  $("stop").hidden = !busy && !turn?.isPlaying; // speech plays on after its answer is complete
  document.body.classList.toggle("busy", busy);
}

async function toggleRecording() {
  if (recorder) {
    const ended = recorder;
    recorder = null;
    $("record").setAttribute("aria-pressed", "false");
    document.body.classList.remove("recording");
    try {
      attach([await ended.stop()]);
    } catch (error) {
      status(error.message);
    }
    $("text").focus();
    return;
  }
  turn?.stop();
  try {
    recorder = await Recorder.open((level) => $("record").style.setProperty("--level", String(Math.min(1, level * 3))));
    $("record").setAttribute("aria-pressed", "true");
    document.body.classList.add("recording");
    status("Recording. Press again to end, Escape to discard.");
  } catch (error) {
    notice("microphone", whyNot(error));
  }
}

// ---- calls

async function toggleCall() {
  if (call) return call.close();
  stopAll();
  unlock(RATE);
  const audio = { input: { transcription: {} }, ...($("voice").value ? { output: { voice: $("voice").value } } : {}) };
  const session = { type: "realtime", instructions: $("system").value.trim(), audio };
  if ($("longest").value) session.max_output_tokens = Number($("longest").value);
  call = new Call($("talk"), { state: status, ended: endCall });
  showCall();
  status("Calling.");
  try {
    await call.open(api, model.id, session, (level) => $("call").style.setProperty("--level", String(Math.min(1, level * 3))));
  } catch (error) {
    notice("microphone", whyNot(error));
    endCall("");
  }
}

function endCall(why) {
  call = null;
  status(why || "The call has ended.");
  showCall();
}

function showCall() {
  $("call").setAttribute("aria-pressed", String(Boolean(call)));
  for (const name of ["record", "send", "attach", "text", "model"]) $(name).disabled = Boolean(call) || (name === "record" && !canRecord());
  $("idle").hidden ||= Boolean(call);
  $("new").hidden &&= !call;
}

function stopAll() {
  if (recorder) {
    recorder.close();
    recorder = null;
    $("record").setAttribute("aria-pressed", "false");
    document.body.classList.remove("recording");
    status("The recording is discarded.");
  }
  turn?.stop();
  call?.close();
  showState();
}

function resize() {
  $("text").style.height = "auto";
  $("text").style.height = `${Math.min($("text").scrollHeight, 200)}px`;
}

function openSettings() {
  $("settings").open = true;
  $("key").focus();
}

// ---- events

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("sheet").addEventListener("submit", (event) => {
  event.preventDefault();
  $("settings").open = false;
});
$("text").addEventListener("input", resize);
$("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
$("text").addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) attach(event.clipboardData.files);
});
$("attach").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => {
  attach($("file").files);
  $("file").value = "";
  $("text").focus();
});
$("record").addEventListener("click", toggleRecording);
$("call").addEventListener("click", toggleCall);
$("stop").addEventListener("click", stopAll);
$("talk").addEventListener("playback", showState);
$("model").addEventListener("change", chooseModel);
$("key").addEventListener("change", loadModels);
$("new").addEventListener("click", () => {
  stopAll();
  messages = [];
  send.files = [];
  $("talk").replaceChildren();
  $("idle").hidden = false;
  $("new").hidden = true;
  $("text").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if ($("settings").open && !recorder && !call && !turn?.running) $("settings").open = false;
    else stopAll();
  } else if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
    event.preventDefault();
    $("text").focus();
  }
});
document.addEventListener("click", (event) => {
  if (!$("settings").contains(event.target)) $("settings").open = false;
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  attach(event.dataTransfer.files);
});

checkBrowser();
loadModels();
