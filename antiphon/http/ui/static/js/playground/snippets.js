// A request as code that sends exactly the same.
import { access, baseUrl } from "../api.js";

/** Fields that OpenAI's clients do not know and pass on only in `extra_body`. */
const EXTENSIONS = new Set(["top_k", "min_p", "repetition_penalty", "seed"]);

const KEY_NOTE = "the key of this server, in OPENAI_API_KEY";

export const LANGUAGES = [["curl", "curl"], ["python", "Python"], ["javascript", "JavaScript"]];

export function snippet(language, body) {
  return { curl, python, javascript }[language](body);
}

function curl(body) {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const key = access.get().key ? ` \\\n  -H "authorization: Bearer $OPENAI_API_KEY"` : "";
  return `curl -N ${baseUrl()}/responses \\\n  -H 'content-type: application/json'${key} \\\n  -d '${json}'\n`;
}

function python(body) {
  const names = Object.keys(body).filter((name) => !EXTENSIONS.has(name));
  const extra = Object.keys(body).filter((name) => EXTENSIONS.has(name));
  const lines = names.map((name) => `    ${name}=${pythonValue(body[name], 4)},`);
  if (extra.length) {
    const values = Object.fromEntries(extra.map((name) => [name, body[name]]));
    lines.push(`    extra_body=${pythonValue(values, 4)},`);
  }
  const key = access.get().key ? `)  # ${KEY_NOTE}` : ', api_key="none")';
  return `from openai import OpenAI

client = OpenAI(base_url="${baseUrl()}"${key}
stream = client.responses.create(
${lines.join("\n")}
)
for event in stream:
    if event.type == "response.output_text.delta":
        print(event.delta, end="", flush=True)
`;
}

function pythonValue(value, indent) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const pad = " ".repeat(indent + 4);
  const entries = Array.isArray(value)
    ? value.map((each) => `${pad}${pythonValue(each, indent + 4)},`)
    : Object.entries(value).map(([name, each]) => `${pad}${JSON.stringify(name)}: ${pythonValue(each, indent + 4)},`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return entries.length ? `${open}\n${entries.join("\n")}\n${" ".repeat(indent)}${close}` : open + close;
}

function javascript(body) {
  const json = JSON.stringify(body, null, 2).replace(/^( *)"([a-z_]\w*)":/gm, "$1$2:");
  const key = access.get().key ? "" : ', apiKey: "none"';
  return `import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${baseUrl()}"${key} });
const stream = await client.responses.create(${json});
for await (const event of stream) {
  if (event.type === "response.output_text.delta") process.stdout.write(event.delta);
}
`;
}
