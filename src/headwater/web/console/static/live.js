// The metrics of the workspace, once a second, for every part of the page that listens.

import { get, stream, url } from "./api.js";

const HISTORY = 60;
const listeners = new Set();
const history = new Map();
let source = null;
let ticks = [];

export const live = { state: "connecting", snapshot: null, graph: null, problem: null };

export function listen(update) {
  listeners.add(update);
  if (live.snapshot || live.graph) update(live);
  return () => listeners.delete(update);
}

export const rates = (id) => history.get(id) || [];
export const figures = (id) => (live.snapshot && live.snapshot.figures[id]) || null;
export const knownTicks = () => ticks;

function notify() { for (const update of [...listeners]) update(live); }

export async function loadTicks(limit = 600) {
  const found = await get(url("ticks"), { limit });
  ticks = found.ticks;
  return ticks;
}

function mergeTicks(some) {
  if (!some.length) return;
  const first = some[0].tick;
  const kept = ticks.filter((one) => one.tick < first);
  if (kept.length && kept[kept.length - 1].tick < first - 1 && ticks.length) { loadTicks().then(notify, () => {}); return; }
  ticks = [...kept, ...some].slice(-1200);
}

async function loadGraph() {
  live.graph = await get(url("graph"));
  notify();
}

export function connect() {
  if (source) source.close();
  live.state = "connecting";
  notify();
  source = stream(url("live"), {
    onState(state, problem) {
      live.state = state;
      live.problem = problem;
      notify();
    },
    onEvent(kind, data) {
      if (kind === "end") return;
      if (kind !== "figures") { live.problem = data; live.state = "trouble"; notify(); return; }
      live.state = "live";
      live.problem = null;
      live.snapshot = data;
      for (const [id, figure] of Object.entries(data.figures)) {
        const past = history.get(id) || [];
        if (figure.rate !== null) past.push(figure.rate);
        if (past.length > HISTORY) past.shift();
        history.set(id, past);
      }
      mergeTicks(data.ticks);
      if (!live.graph || live.graph.shape !== data.shape) loadGraph().catch(() => {});
      notify();
    },
  });
}
