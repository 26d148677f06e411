// Writes a request as a curl command and as a Python program. They read media from files and contain no base64. Pure functions.

const MARK = "\u0000"; // encloses the name of a file that replaces the file's base64

/** Returns the body with each file's base64 replaced by the file's name between two MARKs. */
function withFiles(value, files) {
  if (Array.isArray(value)) return value.map((item) => withFiles(item, files));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, withFiles(item, files)]));
  }
  if (typeof value !== "string") return value;
  for (const { name, base64 } of files) {
    if (value.endsWith(base64)) return `${value.slice(0, value.length - base64.length)}${MARK}${name}${MARK}`;
  }
  return value;
}

const MARKED = /\\u0000(.*?)\\u0000/g;
const inShell = (name) => `'${name.replaceAll("'", "'\\''")}'`;

/** Returns a shell command that sends the body. files: [{name, base64}] of its media. */
export function curlOf(origin, body, files, hasKey) {
  // In a here-document the shell interprets $, ` and \, so they are escaped, including the backslashes of JSON.
  const json = JSON.stringify(withFiles(body, files), null, 2)
    .split(MARKED)
    .map((part, index) => (index % 2 ? `$(base64 -w0 ${inShell(JSON.parse(`"${part}"`))})` : part.replace(/[\\$`]/g, "\\$&")))
    .join("");
  const key = hasKey ? ` \\\n  -H "Authorization: Bearer $OPENAI_API_KEY"` : "";
  return `curl -N ${origin}/v1/chat/completions${key} \\\n  -H "Content-Type: application/json" \\\n  -d @- <<EOF\n${json}\nEOF\n`;
}

/** Returns a JSON value as a Python expression. */
export function pythonOf(value, indent = "") {
  const deeper = `${indent}    `;
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") {
    const text = JSON.stringify(value);
    const parts = text.slice(1, -1).split(MARKED);
    if (parts.length === 1) return text;
    return `"${parts[0]}" + base64_of("${parts[1]}")`.replace(/^"" \+ /, "");
  }
  if (Array.isArray(value)) {
    if (value.every((item) => typeof item === "string")) return `[${value.map((item) => pythonOf(item)).join(", ")}]`;
    return `[\n${value.map((item) => `${deeper}${pythonOf(item, deeper)},\n`).join("")}${indent}]`;
  }
  if (typeof value === "object") {
    const items = Object.entries(value);
    const flat = `{${items.map(([name, item]) => `"${name}": ${pythonOf(item)}`).join(", ")}}`;
    if (flat.length < 88 && !flat.includes("\n")) return flat;
    return `{\n${items.map(([name, item]) => `${deeper}"${name}": ${pythonOf(item, deeper)},\n`).join("")}${indent}}`;
  }
  return String(value);
}

/** Returns a Python program that sends the body with OpenAI's client. */
export function pythonProgram(origin, body, files, hasKey, sampleRate) {
  const speaks = Boolean(body.audio);
  const imports = [files.length && "import base64", hasKey && "import os", speaks && "import wave"].filter(Boolean);
  const lines = [...imports, ...(imports.length ? [""] : []), "from openai import OpenAI", ""];
  if (files.length) {
    lines.push("", "def base64_of(path):", '    with open(path, "rb") as file:', "        return base64.b64encode(file.read()).decode()", "", "");
  }
  lines.push(`client = OpenAI(base_url="${origin}/v1", api_key=${hasKey ? 'os.environ["OPENAI_API_KEY"]' : '"none"'})`);
  lines.push("stream = client.chat.completions.create(");
  for (const [name, value] of Object.entries(withFiles(body, files))) lines.push(`    ${name}=${pythonOf(value, "    ")},`);
  lines.push(")");
  const read = (indent) => [
    "for chunk in stream:",
    "    if not chunk.choices:",
    "        continue",
    "    delta = chunk.choices[0].delta",
    ...(speaks
      ? [
          '    audio = delta.model_dump().get("audio") or {}',
          '    print(delta.content or audio.get("transcript") or "", end="", flush=True)',
          '    speech.writeframes(base64.b64decode(audio.get("data") or ""))',
        ]
      : ['    print(delta.content or "", end="", flush=True)']),
  ].map((line) => indent + line);
  if (speaks) {
    if (!files.length) lines.unshift("import base64");
    lines.push('with wave.open("answer.wav", "wb") as speech:');
    lines.push("    speech.setnchannels(1)", "    speech.setsampwidth(2)", `    speech.setframerate(${sampleRate})`, ...read("    "));
  } else {
    lines.push(...read(""));
  }
  return `${lines.join("\n")}\n`;
}
