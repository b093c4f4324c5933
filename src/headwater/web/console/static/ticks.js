// The kept ticks, each a bar of its phases; and what one of them read and changed.

import { get, url } from "./api.js";
import { attr, clear, h, say } from "./dom.js";
import { clock, exact, moment, span, unit } from "./format.js";
import { knownTicks, listen, loadTicks } from "./live.js";
import { path } from "./detail.js";
import { loading, nothing, section, trouble } from "./parts.js";
import { chart, drawTicks, PHASES } from "./plot.js";

const SHOWN = 120;

export function ticks(number) {
  let chosen = number ? Number(number) : null;
  let list = [];
  let shownDetail = null;
  const plot = chart(280, drawTicks, "Duration of ticks, by phase");
  const place = h("div", null, loading());
  const range = h("input", { type: "range", class: "range", min: 0, max: 0, value: 0, step: 1, "aria-label": "Tick" });
  const label = h("output", { class: "mono" }, "");
  const about = h("div", { class: "tick-detail" });
  const words = h("p", { class: "lead" }, "Each bar is a tick: all views at one consistent cut of the log.");

  const newest = () => (list.length ? list[list.length - 1].tick : null);

  function draw() {
    if (!list.length) { clear(place, nothing("No ticks yet.", "The engine makes them:", h("code", { class: "inline" }, "headwater run"))); return; }
    if (!plot.node.isConnected || place.firstChild !== plot.node) {
      clear(place, plot.node, h("div", { class: "scrub ticks-scrub" }, range), h("p", { class: "legend spread" }, label, h("span", { class: "legend" }, PHASES.map((phase) => h("span", { class: "pair" }, h("i", { class: "swatch", "data-phase": phase }), phase)))));
    }
    let at = chosen === null ? list.length - 1 : list.findIndex((one) => one.tick >= chosen);
    if (at < 0) at = list.length - 1;
    attr(range, "max", list.length - 1);
    range.value = at;
    const one = list[at];
    const text = `tick ${one.tick} · ${clock(one.at, true)} · ${span(one.seconds)} · ${unit(one.rows, "row")}`;
    say(label, text);
    attr(range, "aria-valuetext", text);
    attr(plot.svg, "data-ticks", list.length);
    plot.set({ ticks: list, chosen: at, onChoose: (index) => choose(list[index].tick) });
    show(one.tick);
  }
  function choose(tick) {
    chosen = tick === newest() ? null : tick;
    draw();
  }
  range.addEventListener("input", () => choose(list[Number(range.value)].tick));

  async function show(tick) {
    if (shownDetail === tick || (chosen === null && about.contains(document.activeElement))) return;
    shownDetail = tick;
    try {
      const doc = await get(url("ticks", tick));
      if (shownDetail !== tick) return;
      const phases = PHASES.filter((phase) => doc.phases[phase]);
      const total = phases.reduce((sum, phase) => sum + doc.phases[phase], 0) || 1;
      clear(about, h("div", { class: "columns" },
        section(`Tick ${doc.tick}`, h("p", { class: "quiet" }, moment(doc.at, true)), h("table", { class: "plain" }, h("tbody", null, phases.map((phase) => h("tr", null,
          h("td", null, h("i", { class: "swatch", "data-phase": phase }), phase), h("td", { class: "number" }, span(doc.phases[phase])), h("td", { class: "number quiet" }, `${Math.round((100 * doc.phases[phase]) / total)} %`)))))),
        section("Records read", doc.topics.length ? h("table", { class: "plain" }, h("tbody", null, doc.topics.map((one) => h("tr", null, h("td", null, h("a", { href: path("topic", one.name) }, one.name)), h("td", { class: "number" }, unit(one.rows, "row")))))) : h("p", { class: "quiet" }, "no new records, or the tick before is no longer kept")),
        section("Rows changed", h("table", { class: "plain" }, h("tbody", null, doc.views.map((one) => h("tr", null, h("td", null, h("a", { href: path("view", one.name) }, one.name)),
          h("td", { class: "number", "data-tone": one.status === "stopped" ? "bad" : null }, one.status === "live" ? unit(one.changed, "row") : one.status))))))));
    } catch (error) { clear(about, trouble(error)); }
  }

  function take() {
    list = knownTicks().slice(-SHOWN);
    draw();
  }
  loadTicks().then(take, (error) => clear(place, trouble(error)));
  const stop = listen(() => {
    const now = knownTicks();
    if (list.length && now.length && now[now.length - 1].tick !== newest()) take();
    else if (!list.length && now.length) take();
  });
  return { page: h("div", { class: "page" }, h("header", { class: "page-head" }, h("h1", null, "Ticks"), words), place, about), title: "Ticks", close() { stop(); plot.close(); } };
}

