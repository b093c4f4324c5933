// A topic: its tail, event time against append time, and its details.

import { get, stream, url } from "./api.js";
import { append, attr, clear, h, icon, say } from "./dom.js";
import { clock, count, exact, isNumeric, cell, moment, span, unit } from "./format.js";
import { listen, live } from "./live.js";
import { detail, path, strip } from "./detail.js";
import { loading, missing, nothing, table, tabs, trouble } from "./parts.js";
import { chart, drawTimes } from "./plot.js";

const KEPT = 200;

function tail(name) {
  const status = h("span", { class: "quiet" }, "connecting");
  const place = h("div", { class: "tail" }, loading());
  let paused = false;
  let body = null;
  let buffered = [];
  let received = 0;
  const button = h("button", { type: "button", class: "button", "aria-pressed": "false", onclick: () => pause(!paused) }, icon("pause"), h("span", null, "Pause"));

  function pause(on) {
    paused = on;
    attr(button, "aria-pressed", String(on));
    clear(button, icon(on ? "play" : "pause"), h("span", null, on ? "Resume" : "Pause"));
    if (!on) { buffered.splice(0).forEach(show); }
    showStatus();
  }
  const showStatus = () => say(status, paused ? `paused, ${unit(buffered.reduce((sum, one) => sum + one.received, 0), "new row")}` : body ? `${unit(received, "row")} received` : "no rows yet");

  function show(some) {
    if (!body) {
      const found = table(some.columns, [], { caption: `Tail of ${name}` });
      clear(place, found);
      body = found.querySelector("tbody");
    }
    const rows = some.rows.map((row, number) => h("tr", { class: `${some.late[number] ? "late " : ""}fresh` }, row.map((value, at) => {
      const text = cell(value);
      return h("td", { class: value === null ? "null" : isNumeric(some.columns[at].type) ? "number" : null, title: text.length > 40 ? text : null }, text);
    })));
    const skipped = some.received - some.rows.length;
    if (skipped > 0 && received) rows.push(h("tr", { class: "skipped" }, h("td", { colspan: some.columns.length }, `${exact(skipped)} more rows at the same time`)));
    body.prepend(...rows);
    while (body.childElementCount > KEPT) body.lastElementChild.remove();
    received += some.received;
    showStatus();
  }

  const source = stream(url("topics", name, "tail"), {
    onState(state, problem) {
      if (state === "refused") clear(place, trouble(problem));
      if (state === "lost") say(status, "connection lost, reconnecting");
      if (state === "live" && !body) { clear(place, nothing("No rows yet.", "New rows appear here when they are appended.")); showStatus(); }
    },
    onEvent(kind, data) {
      if (kind === "records") { paused ? buffered.push(data) : show(data); showStatus(); }
      if (kind === "error") clear(place, trouble({ message: data.detail, hint: data.hint }));
    },
  });
  const keys = (event) => { if (event.key === "p" && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && !event.ctrlKey && !event.metaKey) pause(!paused); };
  document.addEventListener("keydown", keys);
  return {
    node: h("div", { class: "tab-body" }, h("div", { class: "tools" }, status, h("span", { class: "grow" }), h("span", { class: "legend" }, h("i", { class: "swatch late" }), "late"), button), place),
    close() { source.close(); document.removeEventListener("keydown", keys); },
  };
}

function times(name) {
  let by = "time";
  let data = null;
  let busy = false;
  const plot = chart(380, drawTimes, "");
  const place = h("div", null, loading());
  const words = h("p", { class: "quiet" });
  const chosen = h("select", { class: "input", "aria-label": "X axis", onchange: (event) => { by = event.target.value; draw(); } },
    h("option", { value: "time" }, "append time"), h("option", { value: "order" }, "order of arrival"));
  const list = h("div", { class: "late-list" });

  function draw() {
    if (!data) return;
    if (!data.event.length) { clear(place, nothing("No rows yet.", "Each row becomes a point: its append time and its event time.")); return; }
    if (plot.node.parentNode !== place) clear(place, plot.node);
    plot.set({ data, by });
    const share = ((100 * data.late) / data.event.length).toFixed(1);
    const text = `${unit(data.event.length, "row")} of ${exact(data.total)}, ${exact(data.late)} late (${share} %)`;
    attr(plot.svg, "aria-label", `Event time of ${name} over append time: ${text}`);
    attr(plot.svg, "data-late", data.late);
    say(words, text);
    const late = data.is_late.map((is, at) => (is ? at : -1)).filter((at) => at >= 0).slice(-12).reverse();
    clear(list, late.length ? [h("h3", null, "Latest late rows"), table(
      [{ name: "partition", type: "INT" }, { name: "offset", type: "BIGINT" }, { name: "append time" }, { name: data.time }, { name: "watermark" }, { name: "lateness" }],
      late.map((at) => [data.partition[at], data.offset[at], moment(data.appended[at], true), moment(data.event[at], true), moment(data.watermark[at], true), span((data.watermark[at] - data.event[at]) / 1000)]),
      { caption: "Latest late rows" })] : h("p", { class: "quiet" }, "None of these rows is late."));
  }
  async function load() {
    if (busy) return;
    busy = true;
    try { data = await get(url("topics", name, "time")); draw(); } catch (error) { clear(place, trouble(error, load)); } finally { busy = false; }
  }
  load();
  let rows = null;
  const stop = listen(() => {
    const now = live.snapshot && live.snapshot.figures[`topic:${name}`];
    if (now && rows !== null && now.rows !== rows) load();
    if (now) rows = now.rows;
  });
  return {
    node: h("div", { class: "tab-body" }, h("div", { class: "tools" }, words, h("span", { class: "grow" }),
      h("span", { class: "legend" }, h("i", { class: "swatch" }), "on time", h("i", { class: "swatch late" }), "late", h("i", { class: "swatch line" }), "watermark"),
      h("label", { class: "field" }, h("span", null, "x axis"), chosen)), place,
      h("p", { class: "quiet axis-words" }, "Vertical: event time. Horizontal: append time. Rows below the watermark line are late."), list),
    close() { stop(); plot.close(); },
  };
}

export function topic(name, tab) {
  const shown = tab || "tail";
  const hasTime = shown === "time";
  const part = shown === "tail" ? tail(name) : hasTime ? times(name) : detail("topic", name);
  const head = shown === "about" ? null : strip("topic", name);
  const page = h("div", { class: "page" }, h("header", { class: "page-head" }, h("h1", null, icon("topic"), name)), tabs(`Topic ${name}`, [["tail", "Tail"], ["time", "Event time"], ["about", "About"]], shown, (key) => path("topic", name, key)),
    head ? head.node : null, part.node);
  get(url("topics", name)).catch((problem) => { if (problem.status === 404) missing(page, problem); });
  return { page, title: name, close() { part.close(); if (head) head.close(); } };
}

