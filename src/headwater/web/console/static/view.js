// A view: its rows, searched, sorted, and at any tick that is kept.

import { get, url } from "./api.js";
import { attr, clear, h, icon, say } from "./dom.js";
import { clock, exact, moment, unit } from "./format.js";
import { listen, live, knownTicks, loadTicks } from "./live.js";
import { detail, path, strip } from "./detail.js";
import { loading, missing, nothing, table, tabs, trouble } from "./parts.js";
import { chart, drawChanges } from "./plot.js";

// A slider over the ticks that are kept. At its right end it stays with the newest.
export function scrubber(view, onMove) {
  let ticks = knownTicks();
  let chosen = null;
  const plot = chart(40, drawChanges, `Rows of ${view} that changed, by tick`);
  const range = h("input", { type: "range", class: "range", min: 0, max: 0, value: 0, step: 1, "aria-label": "Tick" });
  const label = h("output", { class: "scrub-label mono" }, "");
  const back = h("button", { type: "button", class: "button live-button", onclick: () => move(null) }, "Live");

  function draw() {
    const last = ticks.length - 1;
    let at = chosen === null ? last : ticks.findIndex((one) => one.tick >= chosen);
    if (at < 0) at = last;
    attr(range, "max", Math.max(0, last));
    range.value = at;
    range.disabled = last < 1;
    const one = ticks[at];
    const text = one ? `tick ${one.tick} · ${moment(one.at)}` : "no tick yet";
    say(label, text);
    attr(range, "aria-valuetext", chosen === null ? `${text}, newest` : text);
    attr(back, "aria-pressed", String(chosen === null));
    plot.set({ values: ticks.map((other) => other.changed[view] || 0), chosen: at });
  }
  function move(tick) {
    chosen = tick;
    draw();
    onMove(tick);
  }
  range.addEventListener("input", () => {
    const at = Number(range.value);
    move(at >= ticks.length - 1 ? null : ticks[at].tick);
  });
  if (!ticks.length) loadTicks().then((found) => { ticks = found; draw(); }, () => {});
  else if (ticks.length < 2) loadTicks().then((found) => { ticks = found; draw(); }, () => {});
  const stop = listen(() => {
    const now = knownTicks();
    const newest = now.length ? now[now.length - 1].tick : 0;
    if (!ticks.length || newest !== ticks[ticks.length - 1].tick) { ticks = now; draw(); }
  });
  draw();
  return {
    node: h("div", { class: "scrubber" }, h("div", { class: "scrub-track" }, plot.node, range), h("div", { class: "scrub-side" }, label, back)),
    tick: () => chosen,
    close() { stop(); plot.close(); },
  };
}

// Return a function that gives the next table the scroll position and focus of the current one.
function keepPlace(place) {
  const before = place.querySelector(".scroll");
  if (!before) return () => {};
  const { scrollLeft, scrollTop } = before;
  const focused = [before, ...before.querySelectorAll(".sorter")].indexOf(document.activeElement);
  return () => {
    const now = place.querySelector(".scroll");
    if (!now) return;
    now.scrollTo(scrollLeft, scrollTop);
    const again = focused < 0 ? null : [now, ...now.querySelectorAll(".sorter")][focused];
    if (again) again.focus({ preventScroll: true });
  };
}

function contents(name, relation) {
  const place = h("div", { class: "contents" }, loading());
  const words = h("span", { class: "quiet" });
  let [search, sort, busy, again, before] = ["", null, false, false, null];
  const field = h("input", { type: "search", class: "input", placeholder: "Search rows   /", "aria-label": "Search rows", data: { search: "yes" }, oninput: (event) => { search = event.target.value; before = null; later(); } });
  const slider = scrubber(relation, () => { before = null; later(); });
  let timer = null;
  const later = () => { clearTimeout(timer); timer = setTimeout(load, 80); };

  async function load() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const tick = slider.tick();
      const doc = await get(url("views", relation, "rows"), { as_of: tick, search, sort });
      const lines = new Set(doc.rows.map((row) => JSON.stringify(row)));
      const fresh = before && tick === null ? (row) => !before.has(JSON.stringify(row)) : null;
      before = lines;
      attr(place, "data-tick", doc.tick);
      const more = doc.matching > doc.rows.length ? `, the first ${exact(doc.rows.length)}` : "";
      say(words, search ? `${exact(doc.matching)} of ${unit(doc.total, "row")} match “${search}”${more}` : `${unit(doc.total, "row")} at tick ${doc.tick}${more}`);
      const restore = keepPlace(place);
      clear(place, doc.rows.length ? table(doc.columns, doc.rows, { caption: `Rows of ${relation}`, sort, onSort: (by) => { sort = by; before = null; load(); }, fresh })
        : search ? nothing("No matching rows.", "The search covers all columns and ignores case.") : nothing("No rows at this tick."));
      restore();
    } catch (error) {
      say(words, "");
      clear(place, trouble(error, load));
    } finally {
      busy = false;
      if (again) { again = false; load(); }
    }
  }
  let seen = null;
  const stop = listen(() => {
    const newest = live.snapshot && live.snapshot.tick ? live.snapshot.tick.tick : null;
    if (newest !== seen && seen !== null && slider.tick() === null) load();
    seen = newest;
  });
  load();
  return {
    node: h("div", { class: "tab-body" }, slider.node, h("div", { class: "tools" }, field, words), place),
    close() { clearTimeout(timer); stop(); slider.close(); },
  };
}

export function view(name, tab) {
  const shown = tab || "rows";
  const nav = h("div", null);
  const part = shown === "about" ? detail("view", name) : contents(name, shown === "rows" ? name : `${name}.${shown}`);
  const head = shown === "about" ? null : strip("view", name);
  const draw = (derived) => clear(nav, tabs(`View ${name}`, [["rows", "Rows"], ...derived.map((one) => [one, one === "late" ? "Late rows" : "Failed rows"]), ["about", "About"]], shown, (key) => path("view", name, key)));
  draw(["late", "errors"].includes(shown) ? [shown] : []);
  get(url("views", name)).then((doc) => draw(doc.derived.map((one) => one.split(".")[1])), (problem) => { if (problem.status === 404) missing(page, problem); });
  const page = h("div", { class: "page" }, h("header", { class: "page-head" }, h("h1", null, icon("view"), name)), nav, head ? head.node : null, part.node);
  return { page, title: name, close() { part.close(); if (head) head.close(); } };
}

