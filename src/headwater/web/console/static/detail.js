// The details of one source, topic, view or sink: the panel next to the graph, and the About tab of its page.

import { get, url } from "./api.js";
import { clear, h } from "./dom.js";
import { bytes, clock, count, DASH, exact, moment, rate, span, unit } from "./format.js";
import { figures, listen, live } from "./live.js";
import { code, facts, figure, loading, nothing, section, table, trouble } from "./parts.js";
import { chart, drawChanges } from "./plot.js";

export const path = (kind, name, ...rest) => "#/" + [kind, name, ...rest].map(encodeURIComponent).join("/");
const link = (kind, name) => h("a", { href: path(kind, name) }, name);
const links = (kind, names) => (names.length ? names.map((name, at) => [at ? ", " : "", link(kind, name)]) : DASH);

const SHOWN = {
  topic: [["rows/s", (f) => rate(f.rate)], ["rows", (f) => count(f.rows)], ["size", (f) => bytes(f.bytes)], ["lag (rows)", (f) => count(f.lag_rows)], ["watermark delay", (f) => span(f.delay_s)]],
  view: [["changes/s", (f) => rate(f.rate)], ["lag (rows)", (f) => count(f.lag_rows)], ["state", (f) => bytes(f.state_bytes)], ["left out", (f) => count(f.totals.diverted + f.totals.dropped)], ["watermark delay", (f) => span(f.delay_s)]],
  source: [["rows/s", (f) => rate(f.rate)], ["rows", (f) => count(f.rows)], ["lag", (f) => bytes(f.behind_bytes)], ["retained WAL", (f) => bytes(f.retained_bytes)], ["last commit", (f, now) => span(f.committed_at === null ? null : (now - f.committed_at) / 1000)]],
  sink: [["rows/s", (f) => rate(f.rate)], ["lag (rows)", (f) => count(f.lag_rows)], ["lag (ticks)", (f) => count(f.lag_ticks)], ["lag (time)", (f) => span(f.lag_s)], ["rejected", (f) => count(f.withheld)]],
};

export function strip(kind, name) {
  const shown = SHOWN[kind].map(([label]) => figure(label));
  const update = () => {
    const found = figures(`${kind}:${name}`);
    if (found) SHOWN[kind].forEach(([, text], at) => shown[at].set(text(found, live.snapshot.at)));
  };
  const stop = listen(update);
  update();
  return { node: h("div", { class: "figures" }, shown.map((one) => one.node)), close: stop };
}

const columns = (doc) => section("Columns", h("table", { class: "plain" }, h("tbody", null, doc.columns.map((column) =>
  h("tr", null, h("td", null, column.name), h("td", { class: "mono" }, column.type), h("td", { class: "quiet" }, [column.key ? "key" : "", doc.time === column.name ? "event time" : "", column.nullable ? "" : "not null"].filter(Boolean).join(", ")))))));

function ledger(doc) {
  const names = ["read", "used", "diverted", "dropped", "failed"];
  const rows = Object.entries(doc.ledger);
  if (!rows.length) return null;
  return section("Ledger", h("p", { class: "quiet" }, "Every row that was read is accounted for: used + diverted + dropped + failed."),
    h("table", { class: "plain" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, "input"), names.map((name) => h("th", { scope: "col", class: "number" }, name)))),
      h("tbody", null, rows.map(([topic, account]) => h("tr", null, h("td", null, link("topic", topic)),
        names.map((name) => h("td", { class: "number", "data-tone": account[name] && ["diverted", "dropped"].includes(name) ? "warn" : account[name] && name === "failed" ? "bad" : null }, exact(account[name]))))))));
}

function changes(doc) {
  const plot = chart(44, drawChanges, `Rows of ${doc.name} that changed, by tick`);
  plot.set({ values: doc.history.map((one) => one.changed), chosen: -1 });
  const [first, last] = [doc.history[0], doc.history[doc.history.length - 1]];
  return { node: section("Ticks", doc.history.length ? [plot.node, h("p", { class: "quiet spread" }, h("span", null, `tick ${first.tick}, ${clock(first.at)}`), h("span", null, "rows changed"), h("span", null, `tick ${last.tick}, ${clock(last.at)}`))] : nothing("No ticks yet.")), close: plot.close };
}

const some = (title, found, more = null) => (found && found.total ? section(`${title} · ${exact(found.total)}`, table(found.columns, found.rows, { caption: title }), more) : null);

const BODIES = {
  topic: (doc) => [
    doc.sample.rows.length ? section("Newest rows", table(doc.sample.columns, doc.sample.rows, { caption: `Newest rows of ${doc.name}`, hidden: ["_partition", "_offset"] })) : section("Newest rows", nothing("No rows yet.")),
    columns(doc),
    facts([
      ["source", doc.source ? link("source", doc.source) : "none: rows are appended by clients"],
      ["read by", links("view", doc.readers)],
      doc.time ? ["event time", `${doc.time}, lateness ${span(doc.lateness_s)}`] : null,
    ]),
    section("Partitions", h("table", { class: "plain" }, h("thead", null, h("tr", null, ["partition", "first", "end", "size", "watermark"].map((name, at) => h("th", { scope: "col", class: at ? "number" : null }, name)))),
      h("tbody", null, doc.partitions.map((one) => h("tr", null, h("td", null, one.partition), [exact(one.first), exact(one.end), bytes(one.bytes), moment(one.watermark)].map((text) => h("td", { class: "number" }, text))))))),
    doc.cursors.length ? section("Cursors", h("table", { class: "plain" }, h("tbody", null, doc.cursors.map((one) => h("tr", null, h("td", null, one.name), h("td", { class: "number" }, unit(one.lag_rows, "row")), h("td", { class: "number" }, span(one.lag_s))))))) : null,
    section("Statement", code(doc.sql)),
  ],
  view: (doc, closers) => {
    const history = changes(doc);
    closers.push(history.close);
    return [
      doc.reason ? h("div", { class: "trouble", role: "alert" }, h("div", null, h("p", { class: "trouble-title" }, doc.status === "stopped" ? `stopped: ${doc.reason}` : doc.reason), doc.hint ? h("p", { class: "hint" }, doc.hint) : null)) : doc.hint ? h("p", { class: "hint" }, doc.hint) : null,
      section("Statement", code(doc.sql)),
      some("Rows", doc.sample),
      history.node,
      ledger(doc),
      some("Late rows", doc.diverted),
      some("Rows that failed", doc.errors, h("p", null, "To edit and replay them: ", h("a", { href: "#/dead" }, "Dead letters"))),
      columns(doc),
      facts([["reads", doc.reads.map((name, at) => [at ? ", " : "", link(live.graph && live.graph.nodes.some((n) => n.id === `view:${name}`) ? "view" : "topic", name)])], ["read by", links("view", doc.readers)], ["sinks", links("sink", doc.sinks)], ["late", doc.late], ["on_error", doc.on_error]]),
      doc.state.length ? section("State", h("table", { class: "plain" }, h("thead", null, h("tr", null, ["arrangement", "runs", "rows", "size"].map((name, at) => h("th", { scope: "col", class: at ? "number" : null }, name)))),
        h("tbody", null, doc.state.map((one) => h("tr", null, h("td", { class: "mono" }, one.name), [exact(one.runs), exact(one.rows), bytes(one.bytes)].map((text) => h("td", { class: "number" }, text))))))) : null,
    ];
  },
  source: (doc) => [
    doc.failed || doc.stopped_tables.length || doc.over_budget ? h("div", { class: "trouble", role: "alert" }, h("div", null, h("p", { class: "trouble-title" }, doc.failed ? doc.state : doc.stopped_tables.length ? `no longer captured: ${doc.stopped_tables.join(", ")}` : "the replication slot retains more WAL than max_wal"),
      h("p", { class: "hint" }, "`headwater status` shows the reason and the next step"))) : null,
    facts([["kind", doc.type], ["state", doc.state], ["position", doc.position || DASH], ["topics", links("topic", doc.topics)], ["commits", exact(doc.commits)], ["last commit", moment(doc.committed_at)],
      ...Object.entries(doc.counts).map(([what, n]) => [what.replaceAll("_", " "), exact(n)])]),
    doc.last_refused.length ? section("Last rejected", doc.last_refused.map((line) => h("p", { class: "mono" }, line))) : null,
    section("Statement", code(doc.sql)),
  ],
  sink: (doc) => [
    doc.reason ? h("div", { class: "trouble", role: "alert", "data-tone": doc.state === "not running" ? "calm" : null }, h("div", null, h("p", { class: "trouble-title" }, `${doc.state}: ${doc.reason}`), h("p", { class: "hint" }, doc.state === "not running" ? "headwater run starts the engine, and with it sources and sinks" : doc.attempts ? `${unit(doc.attempts, "failed attempt")} since the last success` : "`headwater status` shows the next step"))) : null,
    facts([["kind", doc.type], ["state", doc.state], ["view", link("view", doc.view.split(".")[0])], ["key", doc.key.join(", ") || "none"], ["tick", exact(doc.tick)], ["rows applied", exact(doc.applied_rows)], ["rows rejected", exact(doc.withheld)], ...(doc.circuit ? [["circuit", doc.circuit]] : [])]),
    section("Statement", code(doc.sql)),
  ],
};

// The body, loaded; `close` removes its listeners.
export function detail(kind, name) {
  const figuresOf = strip(kind, name);
  const body = h("div", { class: "detail-body" }, loading());
  const closers = [figuresOf.close];
  const control = new AbortController();
  async function load() {
    try {
      const doc = await get(url(`${kind}s`, name), {}, control.signal);
      clear(body, BODIES[kind](doc, closers));
    } catch (error) {
      if (error.name !== "AbortError") clear(body, trouble(error, load));
    }
  }
  load();
  closers.push(() => control.abort());
  return { node: h("div", { class: "detail" }, figuresOf.node, body), close: () => closers.forEach((close) => close()) };
}
