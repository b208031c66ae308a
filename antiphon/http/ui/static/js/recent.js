// The newest conversations, below the views: a click opens one in the playground.
import { access, get } from "./api.js";
import { html, useEffect, useState, useStore } from "./lib.js";
import { chatOf, names } from "./playground/names.js";
import { branch, isRunning, lastResponses, openResponse, session } from "./playground/session.js";

const LIMIT = 100;
const SHOWN = 12;
const SHOWN_OF_API = 5;

/** The conversations of responses, newest first: `id` of the last response, `title`, `day`, and `isOurs`,
 * whether this page began it. All branches and retries of a conversation are one. The title is the first
 * question that is known. */
function conversations(responses) {
  const byId = new Map(responses.map((response) => [response.id, response]));
  const found = new Map();
  for (const end of lastResponses(responses)) {
    let title = "";
    let chat = chatOf(end.id);
    let root = end;
    for (let turn = end; turn; turn = byId.get(turn.previous_response_id)) {
      title = turn.input_preview || title;
      chat ??= chatOf(turn.id);
      root = turn;
    }
    const key = chat ?? root.id;
    if (!found.has(key)) found.set(key, { id: end.id, title: title || end.id, day: dayOf(end.created_at), isOurs: chat !== undefined });
  }
  const all = [...found.values()];
  return [...all.filter(({ isOurs }) => isOurs).slice(0, SHOWN), ...all.filter(({ isOurs }) => !isOurs).slice(0, SHOWN_OF_API)];
}

const dated = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "long" });

function dayOf(unix) {
  const date = new Date(unix * 1000);
  const days = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(date).setHours(0, 0, 0, 0)) / 86_400_000);
  return days === 0 ? "Today" : days === 1 ? "Yesterday" : dated.format(date);
}

/** The list in groups: the days of our conversations, then what programs sent. */
function groupsOf(turns) {
  const groups = new Map();
  for (const turn of turns) {
    const name = turn.isOurs ? turn.day : "From programs";
    groups.set(name, [...groups.get(name) ?? [], turn]);
  }
  return [...groups];
}

export function Recent({ onOpen }) {
  const [turns, setTurns] = useState([]);
  const [trouble, setTrouble] = useState("");
  const { needed, key } = useStore(access);
  const { byResponse } = useStore(names);
  const current = branch(useStore(session)).at(-1);
  const open = current?.responseId;
  const ended = current && !isRunning(current) ? current.id : "";
  useEffect(() => {
    if (needed) return setTurns([]);
    get(`/v1/responses?limit=${LIMIT}`).then(({ data }) => setTurns(conversations(data)), () => setTurns([]));
    return undefined;
  }, [ended, open, needed, key]);
  const show = (id) => openResponse(id).then(() => {
    setTrouble("");
    location.hash = "#/playground";
    onOpen();
  }, (error) => setTrouble(error.message));
  if (!turns.length) return null;
  return html`<section class="recent" aria-label="Recent conversations">
    <h2>Recent</h2>
    ${trouble && html`<p class="trouble" role="alert">${trouble}</p>`}
    ${groupsOf(turns).map(([name, group]) => html`<h3 key=${name}>${name}</h3>
      <ul aria-label=${name}>${group.map(({ id, title }) => html`<li key=${id}><button type="button" class="quiet" title=${byResponse[id] ?? title}
        aria-current=${id === open ? "true" : undefined} onClick=${() => show(id)}>${byResponse[id] ?? title}</button></li>`)}</ul>`)}
    <a href="#/responses" onClick=${onOpen}>Search all</a>
  </section>`;
}
