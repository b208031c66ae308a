// Calls of the API. The key, if the server wants one, lives in sessionStorage only.
import { createStore, inSession } from "./lib.js";

/** The server's root: the page may be mounted below a path. */
const ROOT = new URL("../../", import.meta.url);

const stored = inSession("key");
/** `needed`: the server refused the last request without a key, or with this one. */
export const access = createStore({ key: stored.read(""), needed: false });

export function setKey(key) {
  if (key) stored.write(key);
  else stored.remove();
  access.update({ key, needed: false });
}

/** Who is signed in at an issuer, if the server has issuers. */
export const session = createStore({ user: null, issuers: [] });

export async function loadSession() {
  const reply = await fetch(url("/antiphon/session"));
  if (reply.ok) session.update(await reply.json());
}

/** End the session here, and at the issuer if it has a page for that. */
export async function signOut() {
  const { end_session_url: next } = await post("/antiphon/sign-out");
  location.assign(next ?? ROOT.href);
}

/** Call a function when the user forgets the key. */
export function onForget(callback) {
  let last = access.get().key;
  access.subscribe(() => {
    const { key } = access.get();
    if (last && !key) callback();
    last = key;
  });
}

export class ApiError extends Error {
  constructor(status, body) {
    super(body?.error?.message || `The server answered with status ${status}.`);
    this.status = status;
    this.param = body?.error?.param;
    this.code = body?.error?.code;
  }
}

export const url = (path) => new URL(path.replace(/^\//, ""), ROOT).href;

/** The address for snippets: what clients call `base_url`. */
export const baseUrl = () => url("/v1").replace(/\/$/, "");

function headers(given = {}) {
  const { key } = access.get();
  return key ? { ...given, authorization: `Bearer ${key}` } : given;
}

/** Send a request and return the reply. Raises ApiError for everything but 2xx. */
export async function call(method, path, { body, form, signal, headers: more } = {}) {
  const sent = headers({ ...(body === undefined ? {} : { "content-type": "application/json" }), ...more });
  const reply = await fetch(url(path), {
    method,
    headers: sent,
    body: form ?? (body === undefined ? undefined : JSON.stringify(body)),
    signal,
  });
  if (reply.ok) return reply;
  if (reply.status === 401) access.update({ needed: true });
  throw new ApiError(reply.status, await reply.json().catch(() => null));
}

export const get = async (path, options) => (await call("GET", path, options)).json();
export const post = async (path, body, options) =>
  (await call("POST", path, { body, ...options })).json();
export const remove = async (path) => (await call("DELETE", path)).json();

/** Query string of the values that are set. */
export function query(values) {
  const set = Object.entries(values).filter(([, value]) => value !== "" && value != null);
  return set.length ? `?${new URLSearchParams(set)}` : "";
}

/** Yield the events of a reply, an SSE stream. */
export async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      const blocks = buffer.split("\n\n");
      buffer = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).trim()).join("\n");
        if (data && data !== "[DONE]") yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Upload a form with progress: fetch cannot report it. `onProgress` gets a number from 0 to 1. */
export function upload(path, form, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", url(path));
    Object.entries(headers()).forEach(([name, value]) => request.setRequestHeader(name, value));
    request.upload.onprogress = (event) =>
      event.lengthComputable && onProgress(event.loaded / event.total);
    request.onerror = () => reject(new Error("The server cannot be reached."));
    request.onload = () => {
      let body = null;
      try {
        body = JSON.parse(request.responseText);
      } catch { /* not JSON */ }
      if (request.status < 300) resolve(body);
      else reject(new ApiError(request.status, body));
    };
    request.send(form);
  });
}

/** Offer a file of the server as a download. */
export async function download(path, filename) {
  offer(await (await call("GET", path)).blob(), filename);
}

/** Offer a blob as a download. */
export function offer(content, filename) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = filename;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
