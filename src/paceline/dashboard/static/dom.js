// Small helpers: elements, numbers as people read them, and lists that change in place.

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export function svg(tag, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Only what differs is written, and what was written is remembered here: asking the browser costs more than a comparison.
export function text(node, value) {
  if (node.said !== value) { node.said = value; node.textContent = value; }
}

export function attribute(node, name, value) {
  const known = node.known ??= {};
  if (known[name] !== value) { known[name] = value; node.setAttribute(name, value); }
}

export function variable(node, name, value) { attributeLike(node, name, value, () => node.style.setProperty(name, value)); }

export function mark(node, name, on) { attributeLike(node, `.${name}`, on, () => node.classList.toggle(name, on)); }

function attributeLike(node, key, value, write) {
  const known = node.known ??= {};
  if (known[key] !== value) { known[key] = value; write(); }
}

// Whether what a node shows is the same as last time; then there is nothing to do for it.
export function same(node, ...parts) {
  const shown = JSON.stringify(parts);
  if (node.shown === shown) return true;
  node.shown = shown;
  return false;
}

// Widths are told by the browser when they change; asking for them while drawing would make it lay out twice.
const widths = new Map();
const observer = new ResizeObserver((entries) => { for (const entry of entries) widths.set(entry.target, entry.contentRect.width); });
export function widthOf(node) {
  if (!widths.has(node)) { widths.set(node, node.clientWidth); observer.observe(node); }
  return widths.get(node);
}

// Children by key: made once, moved only where the order changed, removed when gone.
export function keyed(parent, items, keyOf, make, update) {
  parent.kept ??= new Map();
  const kept = parent.kept, seen = new Set();
  let at = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    seen.add(key);
    let node = kept.get(key);
    if (!node) { node = make(item); node.dataset.key = key; kept.set(key, node); }
    update(node, item);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  for (const [key, node] of kept) if (!seen.has(key)) { node.remove(); kept.delete(key); }
}

export function seconds(value) {
  if (value === undefined || Number.isNaN(value)) return "";
  const size = Math.abs(value);
  if (size < 1e-3 && size > 0) return `${(value * 1e6).toFixed(0)} µs`;
  if (size < 1 && size > 0) return `${(value * 1e3).toFixed(size < 0.01 ? 2 : 0)} ms`;
  if (size < 120) return `${value.toFixed(1)} s`;
  if (size < 7200) return `${(value / 60).toFixed(1)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

export function count(value) {
  if (value === undefined) return "";
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(0)} k`;
  return String(Math.round(value));
}

export function bits(value) {
  if (value === undefined) return "";
  for (const [unit, size] of [["Gbit/s", 1e9], ["Mbit/s", 1e6], ["kbit/s", 1e3]])
    if (value >= size) return `${(value / size).toFixed(value >= 100 * size ? 0 : 1)} ${unit}`;
  return `${Math.round(value)} bit/s`;
}

export function percent(value) { return `${Math.round(Math.max(0, Math.min(1, value)) * 100)}%`; }

export function colour(position) { return `hsl(${(position * 137.508 + 210) % 360} 62% var(--job-light))`; }
