// Requests to the server: documents, actions and streams of events. A token, if the server requires one, stays in this tab.

const TOKEN = "headwater.token";
let asked = null;

export class Problem extends Error {
  constructor(document) {
    super(document.detail || document.title || "the request failed");
    this.document = document;
    this.hint = document.hint || null;
    this.status = document.status || 0;
  }
}

export const token = () => { try { return sessionStorage.getItem(TOKEN); } catch { return null; } };
export function keepToken(value) {
  try { value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN); } catch { /* this page alone has it */ }
}
export const onTokenWanted = (ask) => { asked = ask; };

function headers(more) {
  const known = token();
  return known ? { Authorization: `Bearer ${known}`, ...more } : { ...more };
}

// Whole numbers that a browser cannot count to keep all their digits, as text.
export function parse(text) {
  return JSON.parse(text, function keep(key, value, context) {
    if (typeof value === "number" && !Number.isSafeInteger(value) && context && /^-?\d+$/.test(context.source)) return context.source;
    return value;
  });
}

async function refused(answer) {
  const text = await answer.text();
  let document = null;
  try { document = JSON.parse(text); } catch { /* not one of ours */ }
  const problem = new Problem(document || { status: answer.status, detail: `the server answered ${answer.status}` });
  if (answer.status === 401 && asked) asked(Boolean(token()));
  return problem;
}

async function call(path, options) {
  let answer;
  try { answer = await fetch(path, { ...options, headers: headers(options.headers), cache: "no-store" }); }
  catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ status: 0, detail: "the server cannot be reached", hint: "is `headwater serve` still running?" });
  }
  if (!answer.ok) throw await refused(answer);
  return answer;
}

export const url = (...parts) => "/console/api/" + parts.map(encodeURIComponent).join("/");

export async function get(path, query = {}, signal = undefined) {
  const said = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(said).toString();
  const answer = await call(text ? `${path}?${text}` : path, { method: "GET", headers: { Accept: "application/json" }, signal });
  return parse(await answer.text());
}

export async function post(path, body) {
  const answer = await call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "application/json" },
    body: JSON.stringify(body),
  });
  return { document: parse(await answer.text()), tick: answer.headers.get("headwater-tick") };
}

// Server-sent events by fetch, so that a token can be sent along. Connects again until it is closed.
export function stream(path, { onEvent, onState }) {
  const control = new AbortController();
  let delay = 500;
  const report = (state, problem = null) => { if (!control.signal.aborted && onState) onState(state, problem); };
  async function once() {
    const answer = await call(path, { method: "GET", headers: { Accept: "text/event-stream" }, signal: control.signal });
    report("live");
    delay = 500;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      for (let at = text.indexOf("\n\n"); at >= 0; at = text.indexOf("\n\n")) {
        const lines = text.slice(0, at).split("\n");
        text = text.slice(at + 2);
        const kind = lines.find((line) => line.startsWith("event: "));
        const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
        if (kind && data) onEvent(kind.slice(7), parse(data));
      }
    }
  }
  (async () => {
    while (!control.signal.aborted) {
      let problem = null;
      try { await once(); } catch (error) {
        if (control.signal.aborted) return;
        problem = error instanceof Problem ? error : null;
        if (problem && problem.status >= 400 && problem.status < 500 && problem.status !== 429) { report("refused", problem); return; }
      }
      if (control.signal.aborted) return;
      report("lost", problem);
      await new Promise((done) => setTimeout(done, delay));
      delay = Math.min(delay * 2, 5000);
    }
  })();
  return { close: () => control.abort() };
}
