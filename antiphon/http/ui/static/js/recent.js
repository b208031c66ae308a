// The newest conversations, below the views: a click opens one in the playground.
import { access, get } from "./api.js";
import { html, useEffect, useState, useStore } from "./lib.js";
import { branch, isRunning, openResponse, session } from "./playground/session.js";

const LIMIT = 40;
const SHOWN = 12;

/** The last response of each conversation: none of the others continues it. */
export function newestTurns(responses) {
  const continued = new Set(responses.map((response) => response.previous_response_id));
  return responses.filter((response) => response.input_preview && !continued.has(response.id)).slice(0, SHOWN);
}

export function Recent({ onOpen }) {
  const [turns, setTurns] = useState([]);
  const [trouble, setTrouble] = useState("");
  const { needed, key } = useStore(access);
  const current = branch(useStore(session)).at(-1);
  const open = current?.responseId;
  const ended = current && !isRunning(current) ? current.id : "";
  useEffect(() => {
    if (needed) return setTurns([]);
    get(`/v1/responses?limit=${LIMIT}`).then(({ data }) => setTurns(newestTurns(data)), () => setTurns([]));
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
    <ul>${turns.map((turn) => html`<li key=${turn.id}><button type="button" class="quiet" title=${turn.input_preview}
      aria-current=${turn.id === open ? "true" : undefined} onClick=${() => show(turn.id)}>${turn.input_preview}</button></li>`)}</ul>
  </section>`;
}
