// One SELECT over views and topics; its result as a table or a plot.

import { post } from "./api.js";
import { clear, h, say } from "./dom.js";
import { cell, exact, isMoment, unit } from "./format.js";
import { live } from "./live.js";
import { loading, nothing, table, trouble } from "./parts.js";
import { chart, drawResult } from "./plot.js";

const KEPT = "headwater.sql";
const ROWS = 1000;
const kept = () => { try { return sessionStorage.getItem(KEPT) || ""; } catch { return ""; } };

function typeOf(rows, name) {
  const some = rows.map((row) => row[name]).filter((value) => value !== null && value !== undefined);
  if (!some.length) return "name";
  if (some.every((value) => typeof value === "number")) return "number";
  return some.every((value) => isMoment(value) || (value && typeof value === "object" && isMoment(value.start))) ? "time" : "name";
}
const stamp = (value) => Date.parse(typeof value === "object" ? value.start : value);

export function sql() {
  let answer = null;
  let shown = "table";
  let [across, up] = [null, null];
  const names = live.graph ? live.graph.nodes.filter((node) => node.kind === "view" || node.kind === "topic").map((node) => node.name) : [];
  const first = names[0] ? `SELECT * FROM ${names[0]} LIMIT 100` : "SELECT 1 AS one";
  const area = h("textarea", { class: "input mono editor-area", rows: 6, spellcheck: "false", autocomplete: "off", "aria-label": "SQL", data: { search: "yes" } });
  area.value = kept() || first;
  const run = h("button", { type: "button", class: "button primary", onclick: go }, "Run");
  const words = h("span", { class: "quiet", role: "status" });
  const place = h("div", { class: "answer" }, nothing("No query has run yet.", "Write a SELECT above, then Run."));
  const choose = h("div", { class: "segments", role: "group", "aria-label": "Shown as" });
  const plot = chart(340, drawResult, "The result as a plot");

  async function go() {
    try { sessionStorage.setItem(KEPT, area.value); } catch { /* not kept then */ }
    run.disabled = true;
    clear(place, loading());
    say(words, "");
    const begun = performance.now();
    try {
      const { document, tick } = await post("/query", { query: area.value, limit: ROWS });
      answer = document;
      say(words, `${unit(document.rows.length, "row")}${document.more ? ", and more" : ""}${tick ? ` at tick ${tick}` : ""}, ${exact(Math.round(performance.now() - begun))} ms`);
      [across, up] = [null, null];
      draw();
    } catch (error) { answer = null; clear(choose); clear(place, trouble(error)); } finally { run.disabled = false; }
  }

  function draw() {
    const { rows } = answer;
    const columns = rows.length ? Object.keys(rows[0]) : [];
    clear(choose, ["table", "plot"].map((kind) => h("button", { type: "button", "aria-pressed": String(kind === shown), onclick: () => { shown = kind; draw(); } }, kind === "table" ? "Table" : "Plot")));
    if (!rows.length) { clear(place, nothing("The query returned no rows.")); return; }
    const kinds = new Map(columns.map((name) => [name, typeOf(rows, name)]));
    if (shown === "table") {
      clear(place, table(columns.map((name) => ({ name, type: kinds.get(name) === "number" ? "DOUBLE" : "" })).map((column) => ({ ...column, label: column.name })), rows.map((row) => columns.map((name) => row[name])), { caption: "Result" }));
      place.querySelectorAll(".type").forEach((node) => node.remove());
      return;
    }
    const numbers = columns.filter((name) => kinds.get(name) === "number");
    up = up || numbers[numbers.length - 1];
    across = across || columns.find((name) => kinds.get(name) === "time") || columns.find((name) => name !== up) || up;
    if (!up) { clear(place, nothing("Nothing to plot.", "A plot needs a numeric column.")); return; }
    const kind = kinds.get(across);
    const points = rows.filter((row) => typeof row[up] === "number" && row[across] !== null).map((row) => [kind === "time" ? stamp(row[across]) : kind === "number" ? row[across] : cell(row[across]), row[up]]);
    const pick = (label, value, options, set) => h("label", { class: "field" }, h("span", null, label), h("select", { class: "input", onchange: (event) => { set(event.target.value); draw(); } }, options.map((name) => h("option", { value: name, selected: name === value }, name))));
    clear(place, h("div", { class: "tools" }, pick("x axis", across, columns, (name) => { across = name; }), pick("y axis", up, numbers, (name) => { up = name; })), plot.node);
    plot.svg.setAttribute("aria-label", `${up} over ${across}, ${unit(points.length, "point")}`);
    plot.set({ points: kind === "name" ? points.slice(0, 60) : points, kind });
  }

  area.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); go(); } });
  return {
    page: h("div", { class: "page" }, h("header", { class: "page-head" }, h("h1", null, "SQL"), h("p", { class: "lead" }, "One SELECT over views and topics, all at one tick.")),
      area, h("div", { class: "tools" }, run, h("span", { class: "quiet" }, h("kbd", null, "Ctrl"), " ", h("kbd", null, "Enter")), words, h("span", { class: "grow" }), choose), place),
    title: "SQL",
    close: plot.close,
  };
}
