// Health: components with problems, alerts that are firing, and rows that were left out.

import { clear, h, icon } from "./dom.js";
import { exact, moment } from "./format.js";
import { path } from "./detail.js";
import { listen, live } from "./live.js";
import { dot, loading, nothing, section, setDot } from "./parts.js";

const LINKED = ["view", "source", "sink"];
const subject = (one) => (LINKED.includes(one.kind) ? h("a", { href: path(one.kind, one.name) }, one.name) : one.name);

function rows(caption, head, lines) {
  // On a narrow screen each row is a block, and its cells have the names of their columns before them.
  for (const line of lines) [...line.children].forEach((cell, at) => { cell.dataset.name = head[at]; });
  return h("div", { class: "scroll" }, h("table", { class: "rows stacked" }, h("caption", { class: "unseen" }, caption),
    h("thead", null, h("tr", null, head.map((name) => h("th", { scope: "col", class: name === "rows" || name === "open" ? "number" : null }, name)))), h("tbody", null, lines)));
}

function problem(one) {
  const state = dot("idle");
  setDot(state, one.state, one.severity);
  return h("tr", { "data-severity": one.severity }, h("td", null, state, " ", one.state), h("td", null, one.kind === "engine" ? "engine" : `${one.kind} `, one.kind === "engine" ? "" : subject(one)),
    h("td", { class: "text" }, one.reason || ""), h("td", { class: "text" }, one.hint || ""), h("td", { class: "mono" }, one.since ? moment(one.since) : ""));
}

export function health() {
  const place = h("div", null, loading());
  let shown = null;

  function update() {
    const now = live.snapshot;
    if (!now) return;
    const problems = [...(now.health.engine.severity === "ok" ? [] : [now.health.engine]), ...now.health.problems];
    const key = JSON.stringify([problems, now.alerts, now.rejected]);
    if (key === shown) return; // nothing moves under the reader's eyes
    shown = key;
    clear(place,
      problems.length ? section("Problems", rows("Components that are not healthy", ["state", "component", "reason", "next step", "since"], problems.map(problem))) : nothing("Everything is healthy.", "The engine is running, and no view, source, sink, queue, cursor or background work has a problem."),
      now.alerts.length ? section("Active alerts", rows("Alerts that are firing", ["alert", "on", "condition", "key", "firing since"], now.alerts.map((one) => h("tr", null, h("td", null, icon("warn"), " ", one.alert), h("td", { class: "mono" }, one.on), h("td", { class: "mono" }, one.condition), h("td", { class: "mono", title: one.row }, one.key), h("td", { class: "mono" }, moment(one.since)))))) : null,
      now.rejected.length ? section("Rows left out", rows("Rows that were left out", ["by", "outcome", "rows", "open", "listed by"], now.rejected.map((one) => h("tr", null, h("td", null, `${one.kind} `, subject(one)), h("td", null, one.outcome), h("td", { class: "number" }, exact(one.rows)), h("td", { class: "number" }, one.open === null ? "" : exact(one.open)), h("td", { class: "mono" }, one.where || ""))))) : null);
  }

  const stop = listen(update);
  update();
  return {
    page: h("div", { class: "page" }, h("header", { class: "page-head" }, h("h1", null, "Health"), h("p", { class: "lead" }, "As headwater status and /health/ready report it.")), place),
    title: "Health",
    close: stop,
  };
}
