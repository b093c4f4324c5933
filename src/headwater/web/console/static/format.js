// Numbers, spans and moments as people read them. All moments are UTC.

export const DASH = "–";

export function count(n) {
  if (n === null || n === undefined) return DASH;
  const size = Math.abs(n);
  if (size < 100000) return Math.round(n).toLocaleString("en-US");
  for (const [unit, by] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= by) return (n / by).toFixed(size / by >= 100 ? 0 : 1) + unit;
  }
  return String(n);
}

export const exact = (n) => (n === null || n === undefined ? DASH : Number(n).toLocaleString("en-US"));

export function rate(n) {
  if (n === null || n === undefined) return DASH;
  if (n === 0) return "0";
  return n < 10 ? n.toFixed(1) : count(n);
}

export function bytes(n) {
  if (n === null || n === undefined) return DASH;
  let unit = 0;
  while (n >= 1000 && unit < 5) { n /= 1024; unit += 1; }
  return (unit && n < 100 ? n.toFixed(1) : Math.round(n)) + " " + ["B", "kB", "MB", "GB", "TB", "PB"][unit];
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  const size = Math.abs(seconds);
  const sign = seconds < 0 ? "−" : "";
  if (size === 0) return "0 s";
  if (size < 0.0005) return "<1 ms";
  if (size < 1) return sign + Math.max(1, Math.round(size * 1000)) + " ms";
  if (size < 60) return sign + size.toFixed(1) + " s";
  if (size < 3600) return sign + Math.floor(size / 60) + " min";
  if (size < 172800) return sign + (size / 3600).toFixed(1) + " h";
  return sign + Math.round(size / 86400).toLocaleString("en-US") + " d";
}

const pad = (n, width = 2) => String(n).padStart(width, "0");

export function clock(ms, fine = false) {
  if (ms === null || ms === undefined) return DASH;
  const at = new Date(ms);
  const text = `${pad(at.getUTCHours())}:${pad(at.getUTCMinutes())}:${pad(at.getUTCSeconds())}`;
  return fine ? `${text}.${pad(at.getUTCMilliseconds(), 3)}` : text;
}

export function day(ms) {
  const at = new Date(ms);
  return `${at.getUTCFullYear()}-${pad(at.getUTCMonth() + 1)}-${pad(at.getUTCDate())}`;
}

export const moment = (ms, fine = false) => (ms === null || ms === undefined ? DASH : `${day(ms)} ${clock(ms, fine)}`);

export function unit(n, one, many) {
  return `${exact(n)} ${n === 1 ? one : many || one + "s"}`;
}

const STAMP = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?Z?$/;

export function isMoment(value) {
  return typeof value === "string" && STAMP.test(value);
}

export function cell(value) {
  if (value === null || value === undefined) return "NULL";
  if (typeof value === "object" && isMoment(value.start) && isMoment(value.end) && Object.keys(value).length === 2) {
    const [from, to] = [cell(value.start), cell(value.end)];
    return `${from} → ${from.slice(0, 10) === to.slice(0, 10) ? to.slice(11) : to}`;
  }
  if (typeof value === "object") return JSON.stringify(value, (key, inner) => (isMoment(inner) ? cell(inner) : inner));
  const stamp = typeof value === "string" ? STAMP.exec(value) : null;
  if (!stamp) return String(value);
  const fraction = (stamp[3] || "").replace(/0+$/, "");
  return `${stamp[1]} ${stamp[2]}${fraction ? "." + fraction : ""}`;
}

export const isNumeric = (type) => /^(TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL)/.test(type || "");
