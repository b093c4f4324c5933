// Plots in SVG: scales, axes, points, lines and bars. Redrawn when the place they are in changes its size.

import { attr, clear, h, s } from "./dom.js";
import { clock, count, day, span } from "./format.js";

const MARGIN = { top: 16, right: 16, bottom: 28, left: 64 };

export function nice(low, high, wanted) {
  const size = (high - low) / Math.max(1, wanted) || 1;
  const power = 10 ** Math.floor(Math.log10(size));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= size) || size;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3,
  7200e3, 10800e3, 21600e3, 43200e3, 86400e3, 172800e3, 604800e3, 2592000e3, 31536000e3];

export function niceTimes(low, high, wanted) {
  const size = (high - low) / Math.max(1, wanted);
  const step = STEPS.find((n) => n >= size) || size || 1;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  const label = (at) => (step >= 86400e3 ? day(at) : step >= 1000 ? (step >= 60e3 ? clock(at).slice(0, 5) : clock(at)) : clock(at, true).slice(3));
  return found.map((at) => [at, label(at)]);
}

function widen(values, share = 0.04) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  if (!Number.isFinite(low)) return [0, 1];
  if (low === high) return [low - 1, high + 1];
  const more = (high - low) * share;
  return [low - more, high + more];
}

export function chart(height, draw, label) {
  const svg = s("svg", { class: "plot", role: "img", "aria-label": label || "", height });
  const node = h("div", { class: "plot-place", style: { height: `${height}px` } }, svg);
  let last = null;
  const again = () => {
    const width = Math.max(240, node.clientWidth);
    attr(svg, "width", width);
    attr(svg, "viewBox", `0 0 ${width} ${height}`);
    if (last !== null) draw(svg, width, height, last);
  };
  const watcher = new ResizeObserver(again);
  watcher.observe(node);
  return { node, svg, set: (data) => { last = data; again(); }, close: () => watcher.disconnect() };
}

export function frame(svg, width, height, x, y, xTicks, yTicks) {
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  clear(svg,
    yTicks.map(([at, label]) => [
      s("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(at), y2: y(at) }),
      s("text", { class: "axis", x: MARGIN.left - 8, y: y(at) + 4, "text-anchor": "end" }, label)]),
    xTicks.map(([at, label]) => [
      s("line", { class: "tickmark", x1: x(at), x2: x(at), y1: bottom, y2: bottom + 4 }),
      s("text", { class: "axis", x: x(at), y: bottom + 17, "text-anchor": "middle" }, label)]),
    s("line", { class: "axis-line", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }));
}

function scales(width, height, xs, ys) {
  const [left, right, top, bottom] = [MARGIN.left, width - MARGIN.right, MARGIN.top, height - MARGIN.bottom];
  return {
    x: (at) => left + ((at - xs[0]) / (xs[1] - xs[0])) * (right - left),
    y: (at) => bottom - ((at - ys[0]) / (ys[1] - ys[0])) * (bottom - top),
  };
}

const dots = (points) => points.map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join("");

// Append time against event time: rows above the watermark are on time, rows below it are late.
export function drawTimes(svg, width, height, { data, by }) {
  const xsOf = by === "order" ? data.appended.map((_, at) => at) : data.appended;
  const marks = data.watermark.filter((mark) => mark !== null);
  const xs = widen(xsOf);
  const ys = widen([...data.event, ...marks]);
  const { x, y } = scales(width, height, xs, ys);
  const across = Math.max(2, Math.floor(width / 130));
  const xTicks = by === "order" ? nice(Math.max(0, xs[0]), xs[1], across).map((at) => [at, count(at)]) : niceTimes(...xs, across);
  frame(svg, width, height, x, y, xTicks, niceTimes(...ys, 6));
  const inTime = [];
  const late = [];
  data.event.forEach((event, at) => (data.is_late[at] ? late : inTime).push([x(xsOf[at]), y(event)]));
  const lines = new Map();
  data.watermark.forEach((mark, at) => {
    if (mark === null) return;
    const part = data.partition[at];
    if (!lines.has(part)) lines.set(part, []);
    lines.get(part).push([x(xsOf[at]), y(mark)]);
  });
  for (const line of lines.values()) {
    let path = "";
    line.forEach(([px, py], at) => { path += at ? `H${px.toFixed(1)}V${py.toFixed(1)}` : `M${px.toFixed(1)} ${py.toFixed(1)}`; });
    svg.append(s("path", { class: "watermark", d: path }));
  }
  svg.append(s("path", { class: "points", d: dots(inTime) }), s("path", { class: "points late", d: dots(late) }));
}

export const PHASES = ["plan", "read", "compute", "write", "merge", "commit", "tidy"];

// The top of the scale: the bar of a tick that took many times longer than the others is cut off, with its duration above.
function usual(seconds) {
  const sorted = [...seconds].sort((a, b) => a - b);
  const most = Math.max(sorted[sorted.length - 1] || 0, 0.001);
  const high = sorted[Math.floor(sorted.length * 0.95)] || most;
  return sorted.length >= 20 && most > 3 * high ? 1.5 * high : most;
}

// One bar for each tick, a part for each phase.
export function drawTicks(svg, width, height, { ticks, chosen, onChoose }) {
  const most = usual(ticks.map((one) => one.seconds));
  const left = MARGIN.left;
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  const slot = (right - left) / Math.max(ticks.length, 1);
  const y = (seconds) => bottom - (seconds / most) * (bottom - MARGIN.top);
  const every = Math.max(1, Math.ceil(ticks.length / Math.max(2, width / 110)));
  const x = (at) => left + (at + 0.5) * slot;
  const labels = ticks.map((one, at) => [at, one.tick]).filter(([at]) => at % every === 0);
  const yTicks = nice(0, most, 4).map((at) => [at, most < 1 ? `${+(at * 1000).toFixed(1)} ms` : `${+at.toFixed(2)} s`]);
  frame(svg, width, height, x, y, labels, yTicks);
  const paths = new Map(PHASES.map((phase) => [phase, ""]));
  const bar = Math.max(1, Math.min(28, slot * 0.72));
  ticks.forEach((one, at) => {
    let from = 0;
    const share = Math.min(1, most / (one.seconds || 1));
    if (share < 1) svg.append(s("text", { class: "axis", x: x(at), y: MARGIN.top - 3, "text-anchor": at > ticks.length - 4 ? "end" : at < 4 ? "start" : "middle" }, `${span(one.seconds)} ↑`));
    for (const phase of PHASES) {
      const seconds = (one.phases[phase] || 0) * share;
      if (seconds <= 0) continue;
      const top = y(from + seconds);
      paths.set(phase, `${paths.get(phase)}M${(x(at) - bar / 2).toFixed(1)} ${y(from).toFixed(1)}V${top.toFixed(1)}h${bar.toFixed(1)}V${y(from).toFixed(1)}Z`);
      from += seconds;
    }
  });
  if (chosen >= 0) svg.append(s("rect", { class: "chosen", x: x(chosen) - slot / 2, y: MARGIN.top - 6, width: slot, height: bottom - MARGIN.top + 6, rx: 3 }));
  for (const [phase, path] of paths) svg.append(s("path", { class: "phase", "data-phase": phase, d: path }));
  svg.onclick = (event) => {
    const at = Math.floor((event.clientX - svg.getBoundingClientRect().left - left) / slot);
    if (at >= 0 && at < ticks.length) onChoose(at);
  };
}

// Rows that changed, tick by tick: what a slider moves over.
export function drawChanges(svg, width, height, { values, chosen }) {
  const most = Math.max(...values, 1);
  const slot = (width - 16) / Math.max(1, values.length - 1);
  const bar = Math.max(1, Math.min(10, slot * 0.6));
  clear(svg, values.map((value, at) => {
    const size = value ? Math.max(2, Math.sqrt(value / most) * (height - 2)) : 1;
    return s("rect", { class: at === chosen ? "mark on" : "mark", x: 8 + at * slot - bar / 2, y: height - size, width: bar, height: size, rx: Math.min(1.5, bar / 3) });
  }));
}

// A result: numbers over a column that is a time, a number or a name.
export function drawResult(svg, width, height, { points, kind }) {
  const numbers = points.map(([, value]) => value);
  const ys = widen([...numbers, 0], 0.05);
  if (ys[0] < 0 && Math.min(...numbers) >= 0) ys[0] = 0;
  if (kind === "name") {
    const { y } = scales(width, height, [0, 1], ys);
    const slot = (width - MARGIN.left - MARGIN.right) / points.length;
    const x = (at) => MARGIN.left + (at + 0.5) * slot;
    const every = Math.max(1, Math.ceil(72 / slot));
    frame(svg, width, height, x, y, points.map(([name], at) => [at, String(name).slice(0, 14)]).filter(([at]) => at % every === 0),
      nice(ys[0], ys[1], 5).map((at) => [at, count(at) === "0" && at ? at.toPrecision(2) : count(at)]));
    const bar = Math.min(48, slot * 0.7);
    points.forEach(([name, value], at) => svg.append(s("rect", { class: "value", x: x(at) - bar / 2, width: bar, rx: 2, y: Math.min(y(value), y(0)), height: Math.max(1, Math.abs(y(value) - y(0))) },
      s("title", null, `${name}: ${value}`))));
    return;
  }
  const sorted = [...points].sort((a, b) => a[0] - b[0]);
  const xs = widen(sorted.map(([at]) => at), 0.01);
  const { x, y } = scales(width, height, xs, ys);
  const across = Math.max(2, Math.floor(width / 130));
  frame(svg, width, height, x, y, kind === "time" ? niceTimes(...xs, across) : nice(...xs, across).map((at) => [at, count(at)]),
    nice(ys[0], ys[1], 5).map((at) => [at, Math.abs(at) < 10 && at ? String(+at.toPrecision(3)) : count(at)]));
  svg.append(s("path", { class: "line", d: "M" + sorted.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L") }),
    sorted.length <= 120 ? s("path", { class: "points", d: dots(sorted.map(([at, value]) => [x(at), y(value)])) }) : "");
}
