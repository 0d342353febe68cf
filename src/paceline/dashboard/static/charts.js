// The Gantt chart, the cluster's picture, the switch's memory, and small curves.

import { $, attribute, bits, colour, count, el, keyed, mark, percent, same, seconds, svg, text, variable, widthOf } from "./dom.js";

const LEFT = 86, TOP = 6, BOTTOM = 22;

export function drawGantt(run, openJob) {
  const canvas = $("gantt"), width = Math.max(320, widthOf(canvas.parentNode));
  const servers = Object.values(run.servers).sort((a, b) => a.first_gpu - b.first_gpu);
  const slots = servers.reduce((sum, server) => sum + server.slots, 0);
  const row = Math.max(3, Math.min(16, 420 / Math.max(1, slots))), gap = servers.length > 40 ? 1 : 4;
  const height = TOP + BOTTOM + slots * row + servers.length * gap;
  const bars = Object.entries(run.bars);
  let until = Math.max(run.time_s, 1);
  for (const [, bar] of bars) until = Math.max(until, bar.end_s ?? 0);
  // In steps: bars that have ended stay where they are from one drawing to the next.
  until = Math.ceil((until * 1.01) / (nice(until) / 20)) * (nice(until) / 20);
  const x = (time) => LEFT + (Math.max(0, time) / until) * (width - LEFT - 8);
  attribute(canvas, "viewBox", `0 0 ${width} ${height}`);
  attribute(canvas, "height", height);
  const tops = {};
  let at = TOP;
  for (const server of servers) { tops[server.name] = at; at += server.slots * row + gap; }
  const layer = (name) => canvas.querySelector(`g.${name}`) ?? canvas.appendChild(svg("g", { class: name }));
  keyed(layer("lanes"), servers, (server) => server.name, () => {
    const group = svg("g");
    group.append(svg("rect", { class: "lane" }), svg("text", { "text-anchor": "end", x: LEFT - 6 }));
    return group;
  }, (group, server) => {
    const [lane, label] = group.children;
    attribute(lane, "x", LEFT); attribute(lane, "y", tops[server.name]);
    attribute(lane, "width", width - LEFT - 8); attribute(lane, "height", server.slots * row);
    attribute(label, "y", tops[server.name] + Math.min(server.slots * row, 12));
    text(label, servers.length * 11 > height && servers.indexOf(server) % 4 ? "" : server.name.slice(0, 13));
  });
  const shapes = bars.flatMap(([key, bar]) => pieces(run.servers[bar.server], bar).map(([from, size], i) => ({ key: `${key}.${i}`, bar, from, size })));
  keyed(layer("bars"), shapes, (shape) => shape.key, (shape) => {
    const group = svg("g");
    const rect = svg("rect");
    rect.append(svg("title"));
    group.append(rect, svg("text", { class: "bar" }));
    group.addEventListener("click", () => openJob(shape.bar.job));
    return group;
  }, (group, { bar, from, size }) => {
    if (same(group, bar, from, size, bar.end_s ?? run.time_s, until, width, row, tops[bar.server])) return;
    const [rect, label] = group.children, job = run.jobs[bar.job];
    const left = x(bar.start_s), right = x(bar.end_s ?? run.time_s), y = tops[bar.server] + from * row;
    attribute(rect, "class", bar.outcome || "running"); attribute(rect, "x", left.toFixed(1)); attribute(rect, "y", y.toFixed(1));
    attribute(rect, "width", Math.max(1, right - left).toFixed(1)); attribute(rect, "height", (size * row - 0.6).toFixed(1));
    variable(rect, "fill", colour(job?.position ?? 0));
    variable(rect, "stroke", bar.outcome === "planned" ? colour(job?.position ?? 0) : "");
    text(rect.firstChild, `${bar.job} on ${bar.server}: ${seconds(bar.start_s)} to ${bar.end_s === undefined ? "now" : seconds(bar.end_s)}${bar.outcome ? `, ${bar.outcome}` : ""}`);
    const room = right - left > 7 * bar.job.length + 6 && size * row >= 10;
    text(label, room ? bar.job : "");
    attribute(label, "class", bar.outcome === "planned" ? "bar planned" : "bar");
    if (room) { attribute(label, "x", (left + 4).toFixed(1)); attribute(label, "y", (y + Math.min(size * row, 14) - 3).toFixed(1)); }
  });
  const ticks = layer("ticks");
  const step = niceTime(until / Math.max(3, width / 130));
  keyed(ticks, [...Array(Math.floor(until / step) + 1).keys()].map((i) => i * step), (time) => `t${time}`, () => {
    const group = svg("g");
    group.append(svg("text", { class: "axis", "text-anchor": "middle" }));
    return group;
  }, (group, time) => { attribute(group.firstChild, "x", Math.min(x(time), width - 22).toFixed(1)); attribute(group.firstChild, "y", height - 6); text(group.firstChild, atTime(time, step)); });
  keyed(layer("now"), run.ended_s === undefined ? ["now"] : [], (key) => key, () => svg("line", { class: "now" }), (line) => {
    attribute(line, "x1", x(run.time_s).toFixed(1)); attribute(line, "x2", x(run.time_s).toFixed(1)); attribute(line, "y1", TOP); attribute(line, "y2", height - BOTTOM + 4);
  });
  text($("gantt-note"), bars.some(([, bar]) => bar.outcome === "planned") ? "dashed: as the last plan has it" : "");
}

// Slots that lie together are one piece; a plan names servers, not slots.
function pieces(server, bar) {
  if (!server) return [];
  if (!bar.gpus.length) return [[0, server.slots]];
  const found = [];
  for (const gpu of bar.gpus.map((number) => number - server.first_gpu).sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && last[0] + last[1] === gpu) last[1] += 1;
    else found.push([gpu, 1]);
  }
  return found;
}

function nice(raw) {
  const size = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((factor) => factor * size).find((step) => step >= raw) ?? raw;
}

// Steps that clocks have, and one unit along the whole axis.
function niceTime(raw) {
  if (raw <= 10) return nice(raw);
  return [15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200].find((step) => step >= raw) ?? 86400 * Math.ceil(raw / 86400);
}

function atTime(time, step) {
  const [unit, size] = step >= 3600 ? ["h", 3600] : step >= 60 ? ["min", 60] : step >= 1 ? ["s", 1] : ["", 0];
  return size ? `${Math.round(time / size)} ${unit}` : seconds(time);
}

export function drawCluster(run, openJob) {
  const racks = new Map();
  for (const server of Object.values(run.servers).sort((a, b) => a.first_gpu - b.first_gpu)) {
    if (!racks.has(server.rack)) racks.set(server.rack, []);
    racks.get(server.rack).push(server);
  }
  keyed($("cluster"), [...racks], ([rack]) => rack, ([rack]) => el("div", { class: "rack" }, el("h3", {}, rack), el("div", { class: "servers" })), (node, [, servers]) => {
    keyed(node.lastChild, servers, (server) => server.name, (server) => el("div", { class: "server" }, el("b", {}, server.name), el("div", { class: "slots" }), el("div", { class: "link" }, el("i")), el("span", { class: "note" })), (card, server) => {
      if (same(card, server)) return;
      const [, slots, link, note] = card.children;
      mark(card, "down", server.state !== "up");
      keyed(slots, [...Array(server.slots).keys()], (slot) => String(slot), () => el("button", { class: "slot", type: "button", onclick: (event) => event.target.dataset.job && openJob(event.target.dataset.job) }), (square, slot) => {
        const job = server.held[slot];
        if (square.dataset.job === (job ?? "")) return;
        mark(square, "held", job !== undefined);
        variable(square, "--c", job === undefined ? "" : colour(run.jobs[job]?.position ?? 0));
        attribute(square, "title", job === undefined ? `slot ${slot}: free` : `slot ${slot}: ${job}`);
        attribute(square, "aria-label", job === undefined ? `slot ${slot}: free` : `slot ${slot}: ${job}`);
        square.dataset.job = job ?? "";
      });
      const part = server.load_bps === undefined || !server.capacity_bps ? 0 : server.load_bps / server.capacity_bps;
      variable(link, "--part", percent(part));
      mark(link, "busy", part > 0.8);
      attribute(link, "title", server.load_from === "model" ? "estimated from the jobs' rates and gradients" : "counted at the switch");
      text(note, server.state !== "up" ? `down: ${server.reason}` : server.load_bps === undefined ? "link idle" : `${bits(server.load_bps)} of ${bits(server.capacity_bps)}${server.load_from === "model" ? ", estimated" : ""}`);
    });
  });
}

export function drawMemory(history, slots, positions) {
  const canvas = $("memory"), width = Math.max(280, widthOf(canvas.parentNode)), height = 190;
  attribute(canvas, "viewBox", `0 0 ${width} ${height}`);
  attribute(canvas, "height", height);
  const every = Math.max(1, Math.ceil(history.length / 240));
  const points = history.filter((_, i) => (history.length - 1 - i) % every === 0);
  const names = [...new Set(points.flatMap((point) => Object.keys(point.held)))].sort((a, b) => (positions[a] ?? 0) - (positions[b] ?? 0));
  let top = slots ?? 1;
  const sums = points.map((point) => names.reduce((sum, name) => sum + (point.held[name] ?? 0), 0));
  const most = Math.max(0, ...sums);
  // A memory that is nearly empty would be a line at the bottom: then the chart goes up to what was held.
  if (most < top / 4) top = Math.max(1, most * 1.25);
  const left = 46, bottom = height - 20;
  const first = points[0]?.time_s ?? 0, last = points.at(-1)?.time_s ?? 1;
  const x = (time) => left + ((time - first) / Math.max(1e-9, last - first)) * (width - left - 6);
  const y = (value) => bottom - (Math.min(value, top) / top) * (bottom - 8);
  const base = points.map(() => 0);
  keyed(canvas.querySelector("g.areas") ?? canvas.appendChild(svg("g", { class: "areas" })), points.length > 1 ? names : [], (name) => name, () => { const path = svg("path"); path.append(svg("title")); return path; }, (path, name) => {
    const lower = points.map((point, i) => `${x(point.time_s).toFixed(1)},${y(base[i]).toFixed(1)}`);
    points.forEach((point, i) => { base[i] += point.held[name] ?? 0; });
    const upper = points.map((point, i) => `${x(point.time_s).toFixed(1)},${y(base[i]).toFixed(1)}`);
    attribute(path, "d", `M${upper.join("L")}L${lower.reverse().join("L")}Z`);
    variable(path, "fill", colour(positions[name] ?? 0));
    text(path.firstChild, name);
  });
  keyed(canvas.querySelector("g.marks") ?? canvas.appendChild(svg("g", { class: "marks" })), [["top", top, 14], ["zero", 0, bottom], ["from", first, height - 5], ["to", last, height - 5]], ([key]) => key, ([key]) => svg("text", { class: "axis", "text-anchor": key === "from" ? "start" : "end" }), (label, [key, value, at]) => {
    attribute(label, "x", key === "to" ? width - 4 : key === "from" ? left : left - 6);
    attribute(label, "y", at);
    text(label, key === "from" || key === "to" ? seconds(value) : count(value));
  });
  const now = points.at(-1)?.held ?? {};
  keyed($("memory-legend"), names.filter((name) => now[name] > 0).sort((a, b) => now[b] - now[a]).slice(0, 12), (name) => name, (name) => el("span", {}, el("i", { class: "swatch" }), el("span")), (key, name) => {
    variable(key.firstChild, "--c", colour(positions[name] ?? 0));
    text(key.lastChild, `${name} ${now[name] < 10 ? now[name].toFixed(1) : count(now[name])}`);
  });
}

export function drawCurve(canvas, curve, name, byLine) {
  const width = Math.max(240, widthOf(canvas.parentNode)), height = 120, left = 58;
  attribute(canvas, "viewBox", `0 0 ${width} ${height}`);
  const values = curve.values, least = Math.min(...values), most = Math.max(...values);
  const from = curve.times_s[0], to = curve.times_s.at(-1);
  const x = (time) => left + ((time - from) / Math.max(1e-9, to - from)) * (width - left - 8);
  const y = (value) => height - 20 - ((value - least) / Math.max(1e-12, most - least)) * (height - 34);
  const points = values.map((value, i) => `${x(curve.times_s[i]).toFixed(1)},${y(value).toFixed(1)}`);
  canvas.replaceChildren();
  canvas.append(svg("path", { d: `M${points.join("L")}${points.length === 1 ? "h1" : ""}` }));
  for (const [at, value, anchor, string] of [[12, left - 5, "end", most.toPrecision(4)], [height - 22, left - 5, "end", least.toPrecision(4)], [height - 5, left, "start", byLine ? "oldest shown" : seconds(from)], [height - 5, width - 4, "end", byLine ? "now" : seconds(to)]]) {
    const label = svg("text", { class: "axis", x: value, y: at, "text-anchor": anchor });
    label.textContent = string;
    canvas.append(label);
  }
  attribute(canvas, "aria-label", name);
}
