// The dataflow as a graph. The server computes the layout; metrics change, positions do not.

import { attr, clear, h, icon, s, say } from "./dom.js";
import { bytes, count, rate, span } from "./format.js";
import { figures, listen, live, rates } from "./live.js";
import { dot, loading, nothing, setDot, spark } from "./parts.js";

const STATS = {
  source: [["rows/s", (f) => rate(f.rate)], ["lag", (f) => bytes(f.behind_bytes)], ["last commit", (f, now) => span(f.committed_at === null ? null : (now - f.committed_at) / 1000)]],
  topic: [["rows/s", (f) => rate(f.rate)], ["lag", (f) => count(f.lag_rows)], ["watermark", (f) => span(f.delay_s)]],
  view: [["changes/s", (f) => rate(f.rate)], ["lag", (f) => count(f.lag_rows)], ["watermark", (f) => span(f.delay_s)]],
  sink: [["rows/s", (f) => rate(f.rate)], ["lag", (f) => count(f.lag_rows)], ["lag (time)", (f) => span(f.lag_s)]],
};

export function stateOf(kind, figure) {
  if (!figure) return "idle";
  if (figure.health) return figure.health.state;
  if (kind === "view") return figure.status;
  if (kind === "sink") return figure.state;
  if (kind === "source") return figure.failed || figure.stopped_tables.length ? "stopped" : figure.running ? "running" : "idle";
  return figure.rate ? "live" : "idle";
}

// Without an engine nothing runs, which the bar shows: it is no warning on every node.
export const severityOf = (figure) => (figure && figure.health && figure.health.state !== "not running" ? figure.health.severity : "ok");

export const iconOf = (node) => (node.kind === "topic" && node.label === "table" ? "table" : node.kind);

function node(made, [width, height], open) {
  const stats = STATS[made.kind].map(([label]) => {
    const value = h("b", null, "–");
    return { value, node: h("span", { class: "stat" }, value, h("small", null, label)) };
  });
  const state = dot("idle");
  const line = spark(width - 2, 12);
  const button = h("button", {
    type: "button", class: `node ${made.kind}`, tabindex: "-1", data: { id: made.id },
    style: { left: `${made.x}px`, top: `${made.y}px`, width: `${width}px`, height: `${height}px` },
    onclick: () => open(made.id),
  }, h("span", { class: "node-head" }, icon(iconOf(made)), h("span", { class: "node-name", title: made.name }, made.name), (made.kind === "source" || made.kind === "sink") && made.name.length <= 12 ? h("small", { class: "node-label" }, made.label) : null, state),
  line.node, h("span", { class: "stats" }, stats.map((stat) => stat.node)));
  return {
    made, button,
    update() {
      const figure = figures(made.id);
      const name = stateOf(made.kind, figure);
      setDot(state, name, severityOf(figure));
      attr(button, "data-state", severityOf(figure) === "unhealthy" ? "stopped" : name);
      line.set(rates(made.id));
      if (!figure) return;
      STATS[made.kind].forEach(([, text], at) => say(stats[at].value, text(figure, live.snapshot.at)));
      const words = STATS[made.kind].map(([label, text]) => `${text(figure, live.snapshot.at)} ${label}`).join(", ");
      attr(button, "aria-label", `${made.label} ${made.name}, ${name}, ${words}`);
    },
  };
}

function curve(points) {
  let path = `M${points[0][0]} ${points[0][1]}`;
  for (let at = 1; at < points.length; at += 1) {
    const [[x1, y1], [x2, y2]] = [points[at - 1], points[at]];
    const half = (x1 + x2) / 2;
    path += y1 === y2 ? `H${x2}` : `C${half} ${y1} ${half} ${y2} ${x2} ${y2}`;
  }
  return path;
}

export function flow(open) {
  const canvas = h("div", { class: "canvas" });
  const place = h("div", { class: "canvas-place", role: "group", "aria-label": "Dataflow. Arrow keys move, Enter opens." }, canvas);
  const title = h("h1", null, "Flow");
  const page = h("div", { class: "page flow" }, h("header", { class: "page-head" }, title, h("p", { class: "lead" }, "Sources append to topics, views read topics and views, sinks write views to other systems.")), place);
  let drawn = null;
  let nodes = new Map();
  let edges = [];

  function fit() {
    if (!live.graph || !live.graph.nodes.length) return;
    const scale = Math.max(0.78, Math.min(1, (place.clientWidth - 48) / live.graph.width));
    canvas.style.setProperty("transform", `scale(${scale})`);
    canvas.style.setProperty("width", `${live.graph.width}px`);
    canvas.style.setProperty("height", `${live.graph.height}px`);
    const left = Math.max(24, (place.clientWidth - live.graph.width * scale) / 2);
    canvas.style.setProperty("margin-left", `${left}px`);
    canvas.style.setProperty("margin-bottom", `${live.graph.height * (scale - 1) + 24}px`);
    canvas.style.setProperty("margin-right", `${live.graph.width * (scale - 1) + 24}px`);
  }

  function draw(graph) {
    drawn = graph.shape;
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.id : null;
    if (!graph.nodes.length) {
      nodes = new Map();
      edges = [];
      clear(canvas, nothing("No topics yet.", "Create the first one:",
        h("code", { class: "inline" }, "headwater sql \"CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP)\"")));
      return;
    }
    nodes = new Map(graph.nodes.map((made) => [made.id, node(made, graph.size, open)]));
    edges = graph.edges.map((edge) => ({ edge, path: s("path", { class: "edge", d: curve(edge.points), "data-from": edge.from, "data-to": edge.to }) }));
    const svg = s("svg", { class: "edges", width: graph.width, height: graph.height, "aria-hidden": "true" }, edges.map((one) => one.path));
    clear(canvas, svg, [...nodes.values()].map((one) => one.button));
    const first = nodes.get(focused) || nodes.values().next().value;
    attr(first.button, "tabindex", "0");
    if (focused && nodes.has(focused)) first.button.focus();
    fit();
  }

  function update() {
    if (live.graph && live.graph.shape !== drawn) draw(live.graph);
    if (!live.graph && !canvas.firstChild) clear(canvas, loading());
    for (const one of nodes.values()) one.update();
    for (const { edge, path } of edges) {
      const figure = figures(edge.to);
      const from = figures(edge.from);
      attr(path, "data-flowing", from && figure && from.rate > 0 && severityOf(figure) !== "unhealthy" ? "yes" : null);
    }
  }

  function reach(id, key) {
    const here = live.graph.nodes.find((one) => one.id === id);
    if (key === "ArrowRight" || key === "ArrowLeft") {
      const ids = live.graph.edges.filter((edge) => (key === "ArrowRight" ? edge.from : edge.to) === id).map((edge) => (key === "ArrowRight" ? edge.to : edge.from));
      const some = live.graph.nodes.filter((one) => ids.includes(one.id));
      return some.sort((a, b) => Math.abs(a.y - here.y) - Math.abs(b.y - here.y))[0];
    }
    const column = live.graph.nodes.filter((one) => one.column === here.column).sort((a, b) => a.y - b.y);
    const at = column.findIndex((one) => one.id === id);
    return { ArrowDown: column[at + 1], ArrowUp: column[at - 1], Home: column[0], End: column[column.length - 1] }[key];
  }

  place.addEventListener("keydown", (event) => {
    const id = event.target.dataset && event.target.dataset.id;
    if (!id || !["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const next = reach(id, event.key);
    if (!next) return;
    attr(event.target, "tabindex", "-1");
    const { button } = nodes.get(next.id);
    attr(button, "tabindex", "0");
    button.focus();
    button.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  const near = (id) => {
    for (const { edge, path } of edges) attr(path, "data-near", id && (edge.from === id || edge.to === id) ? "yes" : null);
  };
  place.addEventListener("pointerover", (event) => { const at = event.target.closest(".node"); near(at ? at.dataset.id : null); });
  place.addEventListener("focusin", (event) => { const at = event.target.closest(".node"); near(at ? at.dataset.id : null); });

  const watcher = new ResizeObserver(fit);
  watcher.observe(place);
  const stop = listen(update);
  update();
  return {
    page,
    title: "Flow",
    choose(id) {
      for (const one of nodes.values()) attr(one.button, "aria-pressed", one.made.id === id ? "true" : null);
      if (nodes.has(id)) nodes.get(id).button.scrollIntoView({ block: "nearest", inline: "center", behavior: "smooth" });
    },
    focus: (id) => nodes.get(id) && nodes.get(id).button.focus(),
    close() { watcher.disconnect(); stop(); },
  };
}
