// Pieces that every page uses: tables, code, figures, empty and error states, tabs.

import { append, attr, clear, h, icon, s, say } from "./dom.js";
import { cell, isNumeric } from "./format.js";

export function table(columns, rows, { caption, marks = null, sort = null, onSort = null, fresh = null, hidden = [], onRow = null } = {}) {
  const shown = columns.map((column, at) => [column, at]).filter(([column]) => !hidden.includes(column.name));
  const head = shown.map(([column]) => {
    const down = sort === `-${column.name}`;
    const up = sort === column.name;
    const label = [h("span", { class: "column" }, column.name), h("span", { class: "type" }, column.type || "")];
    const order = up ? "ascending" : down ? "descending" : null;
    return h("th", { scope: "col", class: isNumeric(column.type) ? "number" : null, "aria-sort": order, title: `${column.name} ${column.type || ""}` },
      onSort ? h("button", { type: "button", class: "sorter", onclick: () => onSort(up ? `-${column.name}` : down ? null : column.name) }, label) : label);
  });
  const body = rows.map((row, number) => h("tr", {
    class: [marks && marks[number] ? "late" : "", fresh && fresh(row) ? "fresh" : "", onRow ? "choice" : ""].join(" ").trim() || null,
  }, shown.map(([column, at]) => {
    const value = row[at];
    const text = cell(value);
    return h("td", { class: value === null ? "null" : isNumeric(column.type) ? "number" : null, title: text.length > 40 ? text : null }, text);
  })));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { class: "rows" }, h("caption", { class: "unseen" }, caption), h("thead", null, h("tr", null, head)), h("tbody", null, body)));
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

const WORDS = /(--[^\n]*|'(?:[^']|'')*'|`[^`]*`|\b(?:CREATE|MATERIALIZED|VIEW|TOPIC|SOURCE|SINK|FROM|INTO|WITH|AS|SELECT|WHERE|GROUP|BY|HAVING|ORDER|JOIN|LEFT|RIGHT|FULL|INNER|OUTER|SEMI|ANTI|CROSS|ON|AND|OR|NOT|NULL|IS|IN|LIKE|BETWEEN|INTERVAL|UNION|ALL|DISTINCT|CASE|WHEN|THEN|ELSE|END|OVER|PARTITION|RANGE|ROWS|PRECEDING|FOLLOWING|CURRENT|ROW|FOR|SYSTEM_TIME|OF|EMIT|WINDOW|CLOSE|WATERMARK|PRIMARY|KEY|LIMIT|REPLACE|CAST)\b)/gi;

export function code(text) {
  const node = h("code", null);
  let from = 0;
  for (const found of text.matchAll(WORDS)) {
    node.append(text.slice(from, found.index));
    const kind = found[0].startsWith("--") ? "comment" : /^['`]/.test(found[0]) ? "text" : "word";
    node.append(h("span", { class: `sql-${kind}` }, found[0]));
    from = found.index + found[0].length;
  }
  node.append(text.slice(from));
  return h("pre", { class: "code", tabindex: "0" }, node);
}

export function section(title, ...children) {
  return h("section", { class: "block" }, h("h3", null, title), children);
}

export function nothing(title, ...lines) {
  return h("div", { class: "nothing" }, icon("empty"), h("p", { class: "nothing-title" }, title), lines.map((line) => h("p", null, line)));
}

export function trouble(problem, retry = null) {
  const hint = problem.hint || (problem.document && problem.document.hint);
  return h("div", { class: "trouble", role: "alert" }, icon("warn"), h("div", null,
    h("p", { class: "trouble-title" }, problem.message || problem.detail || "the request failed"),
    hint ? h("p", { class: "hint" }, hint) : null,
    retry ? h("button", { type: "button", class: "button", onclick: retry }, "Try again") : null));
}

export function missing(page, problem) {
  clear(page, h("div", { class: "trouble", role: "alert" }, icon("warn"), h("div", null, h("p", { class: "trouble-title" }, problem.message), problem.hint ? h("p", { class: "hint" }, problem.hint) : null,
    h("p", null, h("a", { href: "#/" }, "Back to Flow")))));
}

export const loading = () => h("div", { class: "loading", "aria-busy": "true" }, h("span", { class: "unseen" }, "loading"));

export function figure(label, title = null) {
  const value = h("span", { class: "figure-value" }, "–");
  const node = h("div", { class: "figure", title }, value, h("span", { class: "figure-label" }, label));
  return { node, set: (text, tone = null) => { say(value, text); attr(value, "data-tone", tone); } };
}

export function dot(state) {
  const tone = { live: "good", following: "good", running: "good", capturing: "good", backfilling: "busy", levelling: "busy", waiting: "busy",
    retrying: "warn", stopped: "bad", failed: "bad", late: "warn" }[state] || "idle";
  return h("span", { class: "dot", "data-tone": tone, "aria-hidden": "true" });
}

const TONES = { unhealthy: "bad", warning: "warn" };

export function setDot(node, state, severity = "ok") {
  attr(node, "data-tone", TONES[severity] || dot(state).dataset.tone);
}

export function tabs(label, names, chosen, href) {
  return h("nav", { class: "tabs", "aria-label": label }, names.map(([key, text]) =>
    h("a", { href: href(key), "aria-current": key === chosen ? "page" : null }, text)));
}

// A small line of the last rates. Its size never changes.
export function spark(width, height) {
  const line = s("path", { class: "spark-line" });
  const node = s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, line);
  return {
    node,
    set(values) {
      const most = Math.max(...values, 1e-9);
      const step = width / 59;
      const points = values.map((value, at) => [width - (values.length - 1 - at) * step, height - 1 - (value / most) * (height - 2)]);
      attr(line, "d", points.length < 2 ? "" : "M" + points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L"));
    },
  };
}

export function note(message, tone = "good") {
  const place = document.getElementById("notes");
  const node = h("p", { class: "note", "data-tone": tone }, message);
  place.append(node);
  setTimeout(() => node.remove(), 6000);
}

export { append, clear };
