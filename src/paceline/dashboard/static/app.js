// A thin client: the server sends a snapshot and then merge patches; everything is drawn from that one state.

import { $, attribute, el, keyed, text } from "./dom.js";
import { drawCluster, drawGantt, drawMemory } from "./charts.js";
import { drawAlarms, drawEvents, drawJobs, drawStragglers, drawSummary, drawSwitchSummary } from "./tables.js";
import { closeJob, openJob, openedJob, steering, takeToken } from "./detail.js";

const SILENT_MS = 1800, HISTORY = 600;
let state = null, chosen = null, heard = 0, pending = false, memory = { of: null, points: [] };

// What tests and the curious look at: how long drawing takes, and how many tasks held the page up.
const perf = { updates: 0, last_ms: 0, max_ms: 0, total_ms: 0, long_tasks: 0 };
window.paceline = { perf, state: () => state };
if (window.PerformanceObserver?.supportedEntryTypes?.includes("longtask"))
  new PerformanceObserver((list) => { perf.long_tasks += list.getEntries().length; }).observe({ type: "longtask", buffered: true });

function merge(target, patch) {
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete target[key];
    else if (typeof value === "object" && !Array.isArray(value)) {
      if (typeof target[key] !== "object" || Array.isArray(target[key])) target[key] = {};
      merge(target[key], value);
    } else target[key] = value;
  }
}

function listen() {
  const events = new EventSource("/api/events");
  const took = (apply) => (event) => { heard = performance.now(); apply(JSON.parse(event.data)); remember(); schedule(); };
  events.addEventListener("snapshot", took((data) => { state = data; memory = { of: null, points: [] }; }));
  events.addEventListener("patch", took((data) => { if (state) merge(state, data); }));
}

function view() {
  const names = [...Object.keys(state.runs), ...Object.keys(state.switches)];
  if (!names.includes(chosen)) chosen = names[0];
  return { run: state.runs[chosen], one: state.switches[chosen] };
}

// The past of the chart comes once; each message adds the switch's last look.
function remember() {
  const { run, one } = view(), now = (run ?? one)?.memory;
  if (memory.of !== chosen) {
    memory = { of: chosen, points: [] };
    const mine = memory;
    fetch(`/api/history/${encodeURIComponent(chosen)}`).then((answer) => answer.json()).then((points) => {
      const last = points.at(-1)?.time_s ?? -1;
      mine.points = [...points, ...mine.points.filter((point) => point.time_s > last)];
    }).catch(() => {});
  }
  if (now && now.time_s > (memory.points.at(-1)?.time_s ?? -1)) {
    memory.points.push(structuredClone(now));
    if (memory.points.length > HISTORY) memory.points.shift();
  }
}

function schedule() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draw(); });
}

function draw() {
  if (!state) return;
  const began = performance.now(), { run, one } = view(), open = (name) => { openJob(chosen, name); schedule(); };
  drawTabs();
  for (const id of ["jobs-card", "gantt-card", "cluster-card", "events-card"]) $(id).hidden = !run;
  $("switch-jobs").hidden = Boolean(run);
  steering(chosen, run, state.steering);
  if (run) {
    document.title = `${run.name}: ${run.state} – Paceline`;
    drawSummary(run);
    drawJobs(run, $("filter").value, openedJob(), open);
    drawGantt(run, open);
    drawCluster(run, open);
    drawEvents(run.events, run.began);
    drawStragglers(run.stragglers, run.lost_gpu_s, run.ended_s !== undefined);
    const positions = Object.fromEntries(Object.values(run.jobs).map((job) => [job.name, job.position]));
    $("memory-card").hidden = !run.memory && !Object.keys(run.switches).length;
    $("stragglers-card").hidden = $("memory-card").hidden && !Object.keys(run.stragglers).length;
    if (run.memory) drawMemory(memory.points, run.memory.slots, positions);
    text($("memory-note"), run.memory?.slots ? `${run.memory.slots} aggregators` : "no figures yet");
  } else if (one) {
    document.title = `${one.address}: ${one.state} – Paceline`;
    drawSwitchSummary(one);
    $("memory-card").hidden = $("stragglers-card").hidden = false;
    drawStragglers(one.stragglers, Object.values(one.stragglers).reduce((sum, each) => sum + each.lost_gpu_s, 0));
    const names = [...new Set(memory.points.flatMap((point) => Object.keys(point.held)))].sort();
    if (one.memory) drawMemory(memory.points, one.memory.slots, Object.fromEntries(names.map((name, i) => [name, i])));
    text($("memory-note"), one.memory?.slots ? `${one.memory.slots} aggregators` : "no figures yet");
  }
  drawAlarms(run ?? one ?? {}, Boolean(run));
  perf.updates += 1;
  perf.last_ms = performance.now() - began;
  perf.total_ms += perf.last_ms;
  perf.max_ms = Math.max(perf.max_ms, perf.last_ms);
}

function drawTabs() {
  const names = [...Object.keys(state.runs), ...Object.keys(state.switches)];
  keyed($("tabs"), names, (name) => name, (name) => el("button", { type: "button", onclick: () => { chosen = name; closeJob(); remember(); schedule(); } }, name), (tab, name) => attribute(tab, "aria-current", String(name === chosen)));
}

// The server speaks twice a second: silence is its death, or the network's.
function watch() {
  const quiet = performance.now() - heard > SILENT_MS, pill = $("connection");
  const said = !heard ? "connecting" : quiet ? "the dashboard does not answer" : "live";
  text(pill, said);
  attribute(pill, "class", `pill ${quiet && heard ? "bad" : heard ? "good" : ""}`);
}

$("filter").addEventListener("input", schedule);
addEventListener("resize", schedule);
addEventListener("keydown", (event) => { if (event.key === "Escape") { closeJob(); schedule(); } });
$("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("paceline-theme", document.documentElement.dataset.theme);
});
const theme = localStorage.getItem("paceline-theme");
if (theme) document.documentElement.dataset.theme = theme;
takeToken();
listen();
setInterval(watch, 250);
