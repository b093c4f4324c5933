// Elements are made here and nowhere else, and all text goes in as text: nothing that comes from a workspace becomes markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

export function append(node, children) {
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function clear(node, ...children) {
  node.replaceChildren();
  return append(node, children);
}

export function say(node, text) {
  const value = String(text);
  if (node.textContent !== value) node.textContent = value;
}

export function attr(node, name, value) {
  if (value === null || value === undefined) { if (node.hasAttribute(name)) node.removeAttribute(name); }
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

const PATHS = {
  source: "M12 3v9m0 0 3.500-3.500M12 12 8.500 8.500M5 14v3.500A2.500 2.500 0 0 0 7.500 20h9a2.500 2.500 0 0 0 2.500-2.500V14",
  topic: "M4 7h16M4 12h16M4 17h10",
  table: "M4 6.500A1.500 1.500 0 0 1 5.500 5h13A1.500 1.500 0 0 1 20 6.500v11a1.500 1.500 0 0 1-1.500 1.500h-13A1.500 1.500 0 0 1 4 17.500zM4 10h16M10 10v9",
  view: "M3 12s3.300-6 9-6 9 6 9 6-3.300 6-9 6-9-6-9-6zm9 2.600a2.600 2.600 0 1 0 0-5.200 2.600 2.600 0 0 0 0 5.200z",
  sink: "M12 12V3m0 9 3.500-3.500M12 12 8.500 8.500M4 13.500c2.700 0 2.700 2.300 5.300 2.300s2.700-2.300 5.400-2.300 2.600 2.300 5.300 2.300M4 18.500c2.700 0 2.700 2.300 5.300 2.300s2.700-2.300 5.400-2.300 2.600 2.300 5.300 2.300",
  flow: "M5 7.500a2 2 0 1 0 0-.1zM5 17.500a2 2 0 1 0 0-.1zM15 12.500a2 2 0 1 0 0-.1zM9 7.500c4 0 2.500 5 6 5M9 17.500c4 0 2.500-5 6-5M19 12.500h2",
  ticks: "M5 19v-6M10 19V8M15 19v-9M20 19V5",
  dead: "M4 7.500A1.500 1.500 0 0 1 5.500 6h13A1.500 1.500 0 0 1 20 7.500v9a1.500 1.500 0 0 1-1.500 1.500h-13A1.500 1.500 0 0 1 4 16.500zM4.500 7l7.500 6 7.500-6",
  sql: "M5 6l5 6-5 6M12.500 18H19",
  close: "M6 6l12 12M18 6 6 18",
  open: "M9 5H5v14h14v-4M13 5h6v6M19 5l-8 8",
  light: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 2.500v2M12 19.500v2M2.500 12h2M19.500 12h2M5.300 5.300l1.400 1.400M17.300 17.300l1.400 1.400M5.300 18.700l1.400-1.400M17.300 6.700l1.400-1.400",
  dark: "M19.500 14.500A8 8 0 0 1 9.500 4.500a8 8 0 1 0 10 10z",
  auto: "M12 20a8 8 0 1 0 0-16 8 8 0 0 0 0 16zM12 4v16",
  help: "M9.200 9.200a2.900 2.900 0 1 1 4.300 2.500c-1 .6-1.500 1.100-1.500 2.300M12 17.500v.1",
  pause: "M8.500 6v12M15.500 6v12",
  play: "M8 5.500v13l10.500-6.500z",
  search: "M10.500 17a6.500 6.500 0 1 0 0-13 6.500 6.500 0 0 0 0 13zM15.500 15.500 20 20",
  warn: "M12 4 2.800 19.500h18.400zM12 10v4.500M12 17v.1",
  empty: "M4 15c2.700 0 2.700-2.300 5.300-2.300s2.700 2.300 5.400 2.300 2.600-2.300 5.300-2.300M4 20c2.700 0 2.700-2.300 5.300-2.300s2.700 2.300 5.400 2.300 2.600-2.300 5.300-2.300M12 3v6",
  health: "M3 12h4l2.500-6 4.500 12 2.500-6H21",
  key: "M14.500 13.500a4.500 4.500 0 1 0-4-2.500L4 17.500V20h3v-2h2v-2l1.500-1.500",
};

export function icon(name, label) {
  const hidden = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  return s("svg", { class: "icon", viewBox: "0 0 24 24", ...hidden }, s("path", { d: PATHS[name] || PATHS.topic }));
}
