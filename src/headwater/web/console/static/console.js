// The shell: navigation, the bar with the state of the engine, the panel, keys, the theme, and the dialog for a token.

import { keepToken, onTokenWanted } from "./api.js";
import { attr, clear, h, icon, say } from "./dom.js";
import { clock, exact, rate, span } from "./format.js";
import { dead } from "./dead.js";
import { detail, path } from "./detail.js";
import { flow, iconOf, severityOf, stateOf } from "./flow.js";
import { health } from "./health.js";
import { connect, figures, listen, live } from "./live.js";
import { dot, nothing, setDot } from "./parts.js";
import { sql } from "./sql.js";
import { ticks } from "./ticks.js";
import { topic } from "./topic.js";
import { view } from "./view.js";

const PAGES = [["flow", "Flow", "#/"], ["ticks", "Ticks", "#/ticks"], ["dead", "Dead letters", "#/dead"], ["health", "Health", "#/health"], ["sql", "SQL", "#/sql"]];
const KINDS = [["source", "Sources"], ["topic", "Topics"], ["view", "Views"], ["sink", "Sinks"]];

let current = null;
let panelBody = null;
let returnTo = null;

// --- the panel ------------------------------------------------------------------------------------------------------

const panelTitle = h("h2", null);
const panelLink = h("a", { class: "button", href: "#/" }, icon("open"), "Open");
const panelPlace = h("div", { class: "panel-body" });
const panel = h("aside", { class: "panel", hidden: true, role: "dialog", "aria-label": "Detail", tabindex: "-1" },
  h("header", { class: "panel-head" }, panelTitle, h("span", { class: "grow" }), panelLink, h("button", { type: "button", class: "button square", "aria-label": "Close", onclick: () => closePanel() }, icon("close"))), panelPlace);

function openPanel({ kind, name, node, close }) {
  if (panelBody) panelBody.close();
  panelBody = { close };
  returnTo = document.activeElement;
  clear(panelTitle, icon(kind), name);
  attr(panel, "aria-label", `${kind} ${name}`);
  panelLink.hidden = kind === "dead";
  attr(panelLink, "href", path(kind, name));
  clear(panelPlace, node);
  panel.hidden = false;
  attr(panel.parentNode, "data-panel", "open");
  panelPlace.scrollTop = 0;
  panel.focus({ preventScroll: true });
}

function closePanel() {
  if (panel.hidden) return false;
  panel.hidden = true;
  attr(panel.parentNode, "data-panel", null);
  if (panelBody) panelBody.close();
  panelBody = null;
  clear(panelPlace);
  if (current && current.choose) current.choose(null);
  if (returnTo && returnTo.isConnected) returnTo.focus();
  return true;
}

function openNode(id) {
  const at = id.indexOf(":");
  const [kind, name] = [id.slice(0, at), id.slice(at + 1)];
  openPanel({ kind, name, ...detail(kind, name) });
  if (current && current.choose) current.choose(id);
}

// --- navigation -----------------------------------------------------------------------------------------------------

const main = h("main", { id: "main", tabindex: "-1" });
const brand = h("span", { class: "brand-name" }, "Headwater");
const filter = h("input", { type: "search", class: "input", placeholder: "Find   /", "aria-label": "Find a topic, view, source or sink" });
const lists = h("div", { class: "lists" });
const pages = h("ul", { class: "pages" }, PAGES.map(([key, text, href]) => h("li", null, h("a", { href, data: { page: key } }, icon(key), h("span", null, text)))));
let rowsOfList = [];
let drawnShape = null;

function drawLists() {
  const wanted = filter.value.trim().toLowerCase();
  const nodes = (live.graph ? live.graph.nodes : []).filter((node) => node.name.toLowerCase().includes(wanted));
  rowsOfList = [];
  clear(lists, KINDS.map(([kind, title]) => {
    const some = nodes.filter((node) => node.kind === kind).sort((a, b) => a.name.localeCompare(b.name));
    if (!some.length) return null;
    return h("section", null, h("h2", null, title), h("ul", null, some.map((node) => {
      const state = dot("idle");
      const row = h("a", { href: path(kind, node.name), data: { id: node.id } }, icon(iconOf(node)), h("span", { class: "name" }, node.name), state);
      rowsOfList.push({ node, state, row });
      return h("li", null, row);
    })));
  }), wanted && !nodes.length ? h("p", { class: "quiet none" }, "no matches") : null);
  mark();
}
filter.addEventListener("input", drawLists);
filter.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && rowsOfList.length) { rowsOfList[0].row.click(); filter.value = ""; drawLists(); main.focus(); }
});

function mark() {
  const parts = route();
  for (const link of pages.querySelectorAll("a")) attr(link, "aria-current", link.dataset.page === (parts[0] || "flow") ? "page" : null);
  for (const { node, row } of rowsOfList) attr(row, "aria-current", parts[0] === node.kind && parts[1] === node.name ? "page" : null);
}

// --- the bar --------------------------------------------------------------------------------------------------------

const engineDot = dot("idle");
const engineText = h("span", null, "engine");
const healthText = h("a", { class: "bar-health", href: "#/health", hidden: true });
const rejectedText = h("a", { class: "bar-health", href: "#/health", hidden: true, "data-tone": "warn" });
const tickText = h("b", { class: "tick-number" }, "–");
const ageText = h("b", { class: "w-age" }, "–");
const rowsText = h("b", { class: "w-rate" }, "–");
const ticksText = h("b", { class: "w-rate" }, "–");
const linkText = h("span", { role: "status" }, "connecting");
const clockText = h("span", { "aria-hidden": "true" });
const linkState = h("span", { class: "link-state" }, linkText, clockText);
const bar = h("header", { class: "bar" },
  h("span", { class: "bar-item engine" }, engineDot, engineText), healthText, rejectedText,
  h("span", { class: "bar-item" }, h("small", null, "tick"), tickText), h("span", { class: "bar-item" }, h("small", null, "age"), ageText),
  h("span", { class: "bar-item" }, h("small", null, "rows/s"), rowsText), h("span", { class: "bar-item" }, h("small", null, "ticks/s"), ticksText),
  h("span", { class: "grow" }), linkState);

const counted = (n, one) => `${exact(n)} ${one}${n === 1 ? "" : "s"}`;

function updateHealth(now) {
  const problems = now.health.problems.filter((one) => one.state !== "not running");
  const bad = problems.filter((one) => one.severity === "unhealthy").length;
  const said = [bad ? `${exact(bad)} unhealthy` : null, problems.length - bad ? counted(problems.length - bad, "warning") : null, now.alerts.length ? counted(now.alerts.length, "alert") : null].filter(Boolean);
  healthText.hidden = false;
  // Green is for a healthy workspace with a running engine: without an engine the state of views and sinks is not known.
  attr(healthText, "data-tone", bad || now.health.engine.severity === "unhealthy" ? "bad" : said.length ? "warn" : now.health.engine.state === "running" ? "good" : null);
  say(healthText, said.join(", ") || (now.health.engine.state === "running" ? "healthy" : "no problem known"));
  const left = now.rejected.reduce((sum, one) => sum + one.rows, 0);
  rejectedText.hidden = !left;
  say(rejectedText, `${counted(left, "row")} left out`);
}

function update() {
  if (live.graph && live.graph.shape !== drawnShape) {
    drawnShape = live.graph.shape;
    say(brand, live.graph.workspace);
    attr(brand, "title", `Headwater ${live.graph.version}, workspace ${live.graph.workspace}`);
    drawLists();
  }
  for (const { node, state } of rowsOfList) setDot(state, stateOf(node.kind, figures(node.id)), severityOf(figures(node.id)));
  const now = live.snapshot;
  if (now) {
    const { engine } = now.health;
    setDot(engineDot, engine.state, engine.severity);
    say(engineText, `engine ${engine.state}`);
    attr(engineText, "title", engine.reason);
    updateHealth(now);
    say(tickText, now.tick ? now.tick.tick.toLocaleString("en-US") : "–");
    say(ageText, now.tick ? span(Math.max(0, now.at - now.tick.at) / 1000) : "–");
    say(rowsText, rate(now.rows_per_s));
    say(ticksText, rate(now.ticks_per_s));
  }
  const words = { live: "live", connecting: "connecting", lost: "connection lost, reconnecting", refused: live.problem ? live.problem.message : "request refused", trouble: live.problem ? live.problem.detail : "no data" };
  say(linkText, words[live.state] || live.state);
  say(clockText, live.state === "live" && now ? ` · ${clock(now.at)} UTC` : "");
  attr(linkState, "data-tone", { lost: "bad", trouble: "bad", refused: "bad" }[live.state] || null);
}

// --- routes ---------------------------------------------------------------------------------------------------------

const route = () => location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map((part) => { try { return decodeURIComponent(part); } catch { return part; } });

function whole(kind, name) {
  const body = detail(kind, name);
  return { page: h("div", { class: "page" }, h("header", { class: "page-head" }, h("h1", null, icon(kind), name)), body.node), title: name, close: body.close };
}

function go() {
  const [kind, name, rest] = route();
  closePanel();
  if (current) current.close();
  if (!kind || kind === "flow") current = flow(openNode);
  else if (kind === "ticks") current = ticks(name);
  else if (kind === "dead") current = dead(openPanel);
  else if (kind === "health") current = health();
  else if (kind === "sql") current = sql();
  else if (kind === "topic" && name) current = topic(name, rest);
  else if (kind === "view" && name) current = view(name, rest);
  else if ((kind === "source" || kind === "sink") && name) current = whole(kind, name);
  else current = { page: h("div", { class: "page" }, nothing(`There is no page ${location.hash}.`, h("a", { href: "#/" }, "Back to Flow"))), title: "Not found", close() {} };
  clear(main, current.page);
  main.scrollTop = 0;
  document.title = `${current.title} · Headwater`;
  mark();
}

// --- theme, keys, token ---------------------------------------------------------------------------------------------

const themes = ["auto", "light", "dark"];
const themeButton = h("button", { type: "button", class: "button square", onclick: () => setTheme(themes[(themes.indexOf(theme()) + 1) % 3]) });
const theme = () => document.documentElement.dataset.theme || "auto";
function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  try { localStorage.setItem("headwater.theme", name); } catch { /* until the page is left */ }
  clear(themeButton, icon(name));
  attr(themeButton, "aria-label", `Theme: ${name}`);
  attr(themeButton, "title", `Theme: ${name}`);
}

const HELP = [["/", "search"], ["Esc", "close the panel, or leave the search"], ["← → ↑ ↓", "move in the graph, or between ticks"], ["Enter", "open"], ["p", "pause or resume the tail"], ["Ctrl Enter", "run the query"], ["g f, g t, g d, g h, g s", "Flow, Ticks, Dead letters, Health, SQL"], ["?", "this help"]];
const help = h("dialog", { class: "dialog", "aria-label": "Keys" }, h("h2", null, "Keys"), h("dl", { class: "keys" }, HELP.map(([keys, text]) => [h("dt", null, keys.split(", ").map((one, at) => [at ? " " : "", h("kbd", null, one)])), h("dd", null, text)])),
  h("form", { method: "dialog" }, h("button", { class: "button" }, "Close")));

const secret = h("input", { type: "password", class: "input mono", name: "token", autocomplete: "off", spellcheck: "false", placeholder: "hw_…", "aria-label": "Token" });
const wrong = h("p", { class: "hint", role: "status" });
const gate = h("dialog", { class: "dialog gate", "aria-label": "Token" }, h("form", {
  onsubmit: (event) => { event.preventDefault(); keepToken(secret.value.trim()); secret.value = ""; gate.close(); connect(); go(); },
}, icon("key"), h("h2", null, "This server requires a token"), h("p", null, "The token is kept until this tab is closed."), secret, wrong, h("button", { class: "button primary" }, "Sign in"), h("p", { class: "quiet" }, "To create one: headwater token create NAME --read")));
gate.addEventListener("cancel", (event) => event.preventDefault());
onTokenWanted((had) => {
  say(wrong, had ? "This token is not valid." : "");
  if (had) keepToken(null);
  if (!gate.open) gate.showModal();
});

let prefix = false;
document.addEventListener("keydown", (event) => {
  if (gate.open) return;
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "range";
  if (event.key === "Escape") {
    if (help.open) return;
    if (typing) { event.target.blur(); return; }
    closePanel();
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (prefix) {
    prefix = false;
    const page = { f: "#/", t: "#/ticks", d: "#/dead", h: "#/health", s: "#/sql" }[event.key];
    if (page) { event.preventDefault(); location.hash = page; }
    return;
  }
  if (event.key === "g") prefix = true;
  if (event.key === "/") { event.preventDefault(); (main.querySelector("[data-search]") || filter).focus(); }
  if (event.key === "?") help.showModal();
});

// --- the page ------------------------------------------------------------------------------------------------------

const side = h("nav", { class: "side", "aria-label": "Console" },
  h("a", { class: "brand", href: "#/" }, h("img", { src: "/console/icon.svg", alt: "", width: 24, height: 24 }), brand),
  pages, h("div", { class: "find" }, filter), lists,
  h("div", { class: "side-foot" }, themeButton, h("button", { type: "button", class: "button square", "aria-label": "Keys", title: "Keys", onclick: () => help.showModal() }, icon("help")), h("a", { href: "/docs", class: "quiet" }, "API"), h("a", { href: "/metrics", class: "quiet" }, "Metrics")));
clear(document.getElementById("app"),
  h("button", { type: "button", class: "skip", onclick: () => main.focus() }, "Skip to the page"),
  h("div", { class: "shell" }, side, h("div", { class: "stage" }, bar, main), panel), help, gate, h("div", { id: "notes", "aria-live": "polite" }));
setTheme(theme());
listen(update);
window.addEventListener("hashchange", go);
connect();
go();
update();
window.addEventListener("pagehide", () => current && current.close());

