// The newest conversations, below the views: a click opens one in the playground.
import { access, get } from "./api.js";
import { html, useEffect, useState, useStore } from "./lib.js";
import { names } from "./playground/names.js";
import { branch, isRunning, lastResponses, openResponse, session } from "./playground/session.js";

const LIMIT = 40;
const SHOWN = 12;

/** The last response of each conversation, which none of the others continues, and as its title the
 * first question that is known. */
function conversations(responses) {
  const byId = new Map(responses.map((response) => [response.id, response]));
  return lastResponses(responses).map((end) => {
    let title = "";
    for (let turn = end; turn; turn = byId.get(turn.previous_response_id)) title = turn.input_preview || title;
    return { id: end.id, title: title || end.id };
  }).slice(0, SHOWN);
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
    <ul>${turns.map(({ id, title }) => html`<li key=${id}><button type="button" class="quiet" title=${byResponse[id] ?? title}
      aria-current=${id === open ? "true" : undefined} onClick=${() => show(id)}>${byResponse[id] ?? title}</button></li>`)}</ul>
    <a href="#/responses" onClick=${onOpen}>Search all</a>
  </section>`;
}
