// Dead letters: rows that sources, views, sinks and queues rejected. Listed, edited, dropped and replayed.

import { get, post, url } from "./api.js";
import { attr, clear, h, icon, say } from "./dom.js";
import { exact, moment, unit } from "./format.js";
import { path } from "./detail.js";
import { code, facts, loading, note, nothing, section, trouble } from "./parts.js";

const STATES = [["open", "open"], ["dropped", "dropped"], ["replayed", "replayed"], ["resolved", "resolved"], ["all", "all"]];

export function dead(openPanel) {
  let state = "open";
  let letters = [];
  const place = h("div", null, loading());
  const words = h("span", { class: "quiet", role: "status" });
  const chosen = h("select", { class: "input", "aria-label": "State", onchange: (event) => { state = event.target.value; load(); } }, STATES.map(([value, text]) => h("option", { value }, text)));

  async function load() {
    try {
      const doc = await get(url("dead"), { state });
      letters = doc.letters;
      say(words, doc.total > letters.length ? `${unit(doc.total, "dead letter")}, the newest ${exact(letters.length)} shown` : unit(doc.total, "dead letter"));
      clear(place, Object.entries(doc.silent).map(([owner, why]) => h("p", { class: "hint" }, `the dead letters of ${owner} cannot be read: ${why}`)),
        letters.length ? list() : state === "open" ? nothing("No open dead letters.", "Sources, views and sinks with on_error = 'divert' put rejected rows here, queues put messages that were delivered too often.") : nothing(state === "all" ? "No dead letters." : `No ${state} dead letters.`));
    } catch (error) { clear(place, trouble(error, load)); }
  }

  function list() {
    return h("div", { class: "scroll" }, h("table", { class: "rows stacked letters" }, h("caption", { class: "unseen" }, "Dead letters"),
      h("thead", null, h("tr", null, ["dead letter", "rejected by", "state", "at", "error"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, letters.map((one) => h("tr", { class: "choice", onclick: () => open(one.id) },
        h("td", { data: { name: "dead letter" } }, h("button", { type: "button", class: "linklike mono", onclick: (event) => { event.stopPropagation(); open(one.id); } }, one.id)),
        h("td", { data: { name: "rejected by" } }, one.owner), h("td", { data: { name: "state" } }, h("span", { class: "tag", "data-tone": one.state === "open" ? "warn" : null }, one.state)), h("td", { class: "mono", data: { name: "at" } }, moment(one.at)), h("td", { title: one.error, data: { name: "error" } }, one.error))))));
  }

  function open(id) {
    const body = h("div", { class: "detail" }, loading());
    openPanel({ kind: "dead", name: id, node: body, close() {} });
    show(id, body);
  }

  async function show(id, body, said = null) {
    try { draw(await get(url("dead", "letter"), { id }), body, said); } catch (error) { clear(body, trouble(error)); }
  }

  function draw(doc, body, said) {
    const row = JSON.parse(doc.row || "{}");
    const inputs = doc.columns.map((column) => {
      const value = row[column.name];
      const given = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
      const field = h("input", { class: "input mono", name: column.name, value: given, placeholder: value === null || value === undefined ? "NULL" : "", autocomplete: "off", spellcheck: "false" });
      return { column, field, given };
    });
    const outcome = h("div", { class: "outcome", role: "status" }, said);
    const changed = () => Object.fromEntries(inputs.filter((one) => one.field.value !== one.given).map((one) => [one.column.name, one.field.value === "" && one.column.nullable && !/^STRING/.test(one.column.type) ? null : one.field.value]));
    const act = async (order) => {
      for (const button of body.querySelectorAll("button")) button.disabled = true;
      try {
        const values = order.action === "replay" ? changed() : {};
        if (Object.keys(values).length) await post(url("dead"), { letter: doc.id, action: "edit", values, expect: doc.version });
        const { document } = await post(url("dead"), { letter: doc.id, ...order });
        const left = document.left && document.left[doc.id];
        if (left) draw(document.letter, body, h("div", { class: "trouble", role: "alert" }, icon("warn"), h("div", null, h("p", { class: "trouble-title" }, "The row was rejected again."), h("p", { class: "hint" }, left), /force/.test(left) ? h("button", { type: "button", class: "button", onclick: () => act({ action: "replay", force: true }) }, "Replay anyway") : null)));
        else {
          note(order.action === "replay" ? `${doc.id} was replayed.` : order.action === "drop" ? `${doc.id} was dropped.` : `${doc.id} was edited, and can be replayed.`);
          draw(document.letter, body, null);
        }
        load();
      } catch (error) {
        for (const button of body.querySelectorAll("button")) button.disabled = false;
        clear(outcome, trouble(error));
      }
    };
    const isActive = ["open", "edited", "dropped"].includes(doc.state);
    const submit = (event) => {
      event.preventDefault();
      const values = changed();
      if (!Object.keys(values).length) { clear(outcome, h("p", { class: "hint" }, "No value was changed.")); return; }
      act({ action: "edit", values, expect: doc.version });
    };
    clear(body,
      h("div", { class: "trouble", "data-tone": "calm" }, h("div", null, h("p", { class: "trouble-title" }, doc.error || "the row was rejected"))),
      facts([["rejected by", h("a", { href: path(doc.kind, doc.owner) }, doc.owner)], ["state", h("span", { class: "tag", "data-tone": doc.state === "open" ? "warn" : null }, doc.state)], ["at", moment(doc.at)], doc.copies > 1 ? ["rows", exact(doc.copies)] : null]),
      isActive && doc.columns.length ? h("form", { class: "editor", onsubmit: submit }, h("h3", null, "Row"), inputs.map(({ column, field }) => h("label", { class: "editor-row" }, h("span", null, column.name, h("small", null, column.type)), field)), outcome,
        h("div", { class: "actions" }, h("button", { type: "submit", class: "button" }, "Save edit"), h("button", { type: "button", class: "button primary", onclick: () => act({ action: "replay" }) }, "Replay"), h("span", { class: "grow" }),
          doc.state === "dropped" ? null : h("button", { type: "button", class: "button danger", onclick: () => act({ action: "drop", expect: doc.version }) }, "Drop")))
        : [section("Row", code(doc.row)), doc.fixed ? h("p", { class: "hint" }, doc.fixed) : null, outcome,
          isActive ? h("div", { class: "actions" }, h("button", { type: "button", class: "button primary", onclick: () => act({ action: "replay" }) }, "Replay"), h("span", { class: "grow" }), h("button", { type: "button", class: "button danger", onclick: () => act({ action: "drop", expect: doc.version }) }, "Drop")) : null],
      doc.actions.length ? section("Actions", h("ol", { class: "action-list" }, doc.actions.map((action) => h("li", null, h("b", null, action.action), ` by ${action.who}, ${moment(action.at)}`, action.settled ? ", applied" : "", action.reason ? `: ${action.reason}` : "")))) : null);
    attr(body, "data-letter", doc.id);
  }

  load();
  return {
    page: h("div", { class: "page" }, h("header", { class: "page-head" }, h("h1", null, "Dead letters"), h("p", { class: "lead" }, "Rows that a source, view, sink or queue rejected. Edit and replay them, or drop them.")),
      h("div", { class: "tools" }, h("label", { class: "field" }, h("span", null, "state"), chosen), words, h("span", { class: "grow" }), h("button", { type: "button", class: "button", onclick: load }, "Refresh")), place),
    title: "Dead letters",
    close() {},
  };
}
