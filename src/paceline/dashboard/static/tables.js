// The job table, stragglers, events, the summary and the alarms.

import { $, attribute, bits, colour, count, el, keyed, mark, percent, same, seconds, text, variable } from "./dom.js";

const ORDER = { failed: 0, running: 1, starting: 1, waiting: 2, pending: 3, stopped: 4, cancelled: 5, done: 6 };
// Their time is not that of the whole job: it says nothing of the plan.
const UNFINISHED = new Set(["failed", "stopped", "cancelled"]);
const LABELS = ["", "", "servers", "iteration", "rate", "path", "planned", "measured", "preemptions", "fallbacks", "loss"];

export function jobText(job) {
  return `${job.name} ${job.state} ${Object.keys(job.servers).join(" ")} ${job.path ?? ""}`.toLowerCase();
}

export function drawJobs(run, filter, opened, openJob) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const jobs = Object.values(run.jobs)
    .filter((job) => words.every((word) => jobText(job).includes(word)))
    .sort((a, b) => (ORDER[a.state] ?? 9) - (ORDER[b.state] ?? 9) || a.position - b.position);
  mark($("jobs"), "no-switch", Object.values(run.jobs).every((job) => job.preemptions === undefined && job.fallbacks === undefined));
  mark($("jobs"), "no-loss", Object.values(run.jobs).every((job) => job.loss === undefined));
  keyed($("jobs").tBodies[0], jobs, (job) => job.name, makeRow(openJob), (row, job) => {
    if (same(row, job, job.name === opened)) return;
    mark(row, "open", job.name === opened);
    const cells = row.cells;
    variable(cells[0].firstChild, "--c", colour(job.position));
    text(cells[1].firstChild, job.state);
    attribute(cells[1].firstChild, "class", `state ${job.state}`);
    attribute(row, "title", job.reason ?? "");
    const why = job.state === "failed" && job.reason, where = Object.entries(job.servers).map(([server, slots]) => `${server}:${slots}`).join(" ");
    text(cells[2], why || where || `asks for ${job.gpus}`);
    cells[2].dataset.label = why ? "why" : "servers";
    // What explains a failure needs the room of the columns behind it.
    mark(row, "why", Boolean(why));
    attribute(cells[2], "colspan", why ? 4 : 1);
    text(cells[3].firstChild, job.iteration === undefined ? "" : `${Math.round(job.iteration)}/${Math.round(job.iterations)}`);
    variable(cells[3].firstChild, "--part", percent((job.iteration ?? 0) / Math.max(1, job.iterations)));
    text(cells[4], job.rate === undefined ? "" : `${job.rate.toPrecision(3)}/s`);
    text(cells[5], job.path ?? "");
    text(cells[6], job.predicted_s === undefined ? "" : seconds(job.predicted_s));
    const off = job.predicted_s && job.measured_s !== undefined && !UNFINISHED.has(job.state) ? job.measured_s / job.predicted_s - 1 : undefined;
    text(cells[7], job.measured_s === undefined ? "" : `${seconds(job.measured_s)}${off === undefined ? "" : ` (${off >= 0 ? "+" : ""}${Math.round(off * 100)}%)`}`);
    mark(cells[7], "off", off !== undefined && Math.abs(off) > 0.25);
    text(cells[8], count(job.preemptions));
    text(cells[9], count(job.fallbacks));
    text(cells[10], job.loss === undefined ? "" : job.loss.toPrecision(4));
  });
}

function makeRow(openJob) {
  return (job) => {
    const row = el("tr", { tabindex: "0", onclick: () => openJob(job.name), onkeydown: (event) => event.key === "Enter" && openJob(job.name) });
    LABELS.forEach((label, i) => {
      const cell = el("td", i === 3 || i === 4 || i > 5 ? { class: "n" } : {});
      if (label) cell.dataset.label = label;
      if (i === 0) cell.append(el("span", { class: "swatch" }), el("span", {}, job.name));
      if (i === 1) cell.append(el("span"));
      if (i === 3) cell.append(el("span", { class: "done-part" }));
      row.append(cell);
    });
    return row;
  };
}

export function drawStragglers(stragglers, lost, over) {
  const rows = Object.entries(stragglers).map(([key, value]) => ({ key, ...value })).sort((a, b) => (b.slow - a.slow) || (b.lost_gpu_s ?? 0) - (a.lost_gpu_s ?? 0) || Math.min(a.score_median ?? 1, a.score_best ?? 1) - Math.min(b.score_median ?? 1, b.score_best ?? 1) || b.lag_s - a.lag_s);
  keyed($("stragglers").tBodies[0], rows.slice(0, 24), (row) => row.key, () => el("tr", {}, el("td"), el("td"), el("td", { class: "n" }), el("td", {}, score()), el("td", {}, score()), el("td", { class: "n" })), (row, item) => {
    mark(row, "slow", item.slow);
    const told = item.worker < 0;
    text(row.cells[0], item.name);
    text(row.cells[1], item.job);
    text(row.cells[2], told ? "told by the job" : seconds(item.lag_s));
    for (const [cell, value] of [[row.cells[3], item.score_median], [row.cells[4], item.score_best]]) {
      cell.firstChild.hidden = told || value === undefined;
      if (value === undefined) continue;
      variable(cell.firstChild.firstChild, "--part", percent(value));
      variable(cell.firstChild.firstChild, "--sc", value < 0.75 && item.slow ? "var(--bad)" : value < 0.9 ? "var(--warn)" : "var(--good)");
      text(cell.firstChild.lastChild, value.toFixed(2));
    }
    text(row.cells[5], told ? "" : `${seconds(item.lost_gpu_s)}`);
  });
  const slow = rows.filter((row) => row.slow).length;
  text($("lost"), rows.length ? `${slow ? `${slow} slow now` : rows.some((row) => row.score_median !== undefined) ? "no worker is slow now" : "scores need the jobs' rates: watch their run"}; ${seconds(lost ?? 0)} of GPU time lost` : over ? "the switch saw no worker" : "the switch has seen no worker yet");
}

function score() { return el("span", { class: "score" }, el("i"), el("span")); }

export function drawEvents(events, began) {
  const rows = Object.entries(events).sort((a, b) => Number(b[0]) - Number(a[0])).slice(0, 120);
  keyed($("events"), rows, ([number]) => number, ([, event]) => {
    const bad = /fail|lost|does not answer|down/.test(event.text);
    const line = el("span", {}, event.text);
    if (event.reason) line.append(" ", el("em", {}, event.reason));
    return el("li", bad ? { class: "bad" } : {}, el("time", { title: new Date((began + event.time_s) * 1000).toLocaleString() }, ""), el("span", { class: "kind" }, event.kind), line);
  }, (line, [, event]) => text(line.firstChild, seconds(event.time_s)));
}

export function drawSummary(run) {
  const jobs = Object.values(run.jobs), servers = Object.values(run.servers);
  const of = (...states) => jobs.filter((job) => states.includes(job.state)).length;
  const slots = servers.filter((server) => server.state === "up").reduce((sum, server) => sum + server.slots, 0);
  const held = servers.reduce((sum, server) => sum + Object.keys(server.held).length, 0);
  const switches = Object.values(run.switches);
  figures([
    ["state", run.paused && run.state === "running" ? "paused" : run.state === "new" ? "getting ready" : run.state, `${run.policy}, ${run.launcher}`],
    ["running", of("running", "starting"), `running, of ${jobs.length} jobs`],
    ["waiting", of("waiting", "pending"), `waiting; ${of("done")} done, ${of("failed", "stopped", "cancelled")} failed or stopped`],
    ["slots", slots ? `${Math.round((100 * held) / slots)}%` : "", `${held} of ${slots} slots in use`],
    ["time", seconds(run.time_s), run.makespan_s === undefined ? "since the start" : "makespan"],
    ["jct", run.avg_jct_s === undefined ? "–" : seconds(run.avg_jct_s), "average completion time"],
    ["switch", switches.length ? switches.map((each) => each.state).sort()[switches.length - 1] : "none", `switch ${switches.map((each) => each.address).join(" ")}`],
  ]);
}

export function drawSwitchSummary(one) {
  const jobs = Object.values(one.jobs);
  const sum = (key) => jobs.reduce((total, job) => total + (job[key] ?? 0), 0);
  const held = sum("held"), slots = one.memory?.slots;
  figures([
    ["switch", one.state, `switch ${one.address}`],
    ["jobs", jobs.length, "jobs admitted"],
    ["memory", slots ? `${((100 * held) / slots).toFixed(held / slots < 0.1 ? 1 : 0)}%` : "", slots ? `of the memory held: ${count(held)} of ${count(slots)} aggregators` : "memory"],
    ["in", bits(8 * sum("bytes_in_s")), "in from workers"],
    ["preemptions", count(sum("preemptions")), "preemptions since admission"],
    ["fallbacks", count(sum("fallbacks")), "fallbacks: packets to custodians"],
  ]);
  const table = $("switch-jobs");
  keyed(table.tBodies[0], Object.entries(one.jobs), ([name]) => name, ([name]) => el("tr", {}, el("td", {}, name), ...Array.from({ length: 6 }, () => el("td", { class: "n" }))), (row, [, job]) => {
    [job.held < 10 ? job.held.toFixed(1) : count(job.held), count(job.completions), count(job.preemptions), count(job.fallbacks), bits(8 * job.bytes_in_s), bits(8 * job.bytes_out_s)].forEach((value, i) => text(row.cells[i + 1], value));
  });
}

function figures(items) {
  keyed($("summary"), items, ([key]) => key, ([key]) => { const made = el("div", { class: "figure" }, el("b"), el("span")); made.id = `figure-${key}`; return made; }, (node, [, value, note]) => {
    text(node.firstChild, String(value));
    text(node.lastChild, note);
    attribute(node, "title", note);
  });
}

export function drawAlarms(view, isRun, age) {
  const alarms = [];
  if (view.trouble) alarms.push(["trouble", `cannot be read: ${view.trouble}`, ""]);
  const switches = isRun ? Object.entries(view.switches ?? {}) : [["", view]];
  for (const [name, one] of switches) {
    const since = seconds(Math.max(0, (view.time_s ?? 0) - one.since_s));
    if (one.state === "silent") alarms.push([`silent${name}`, `The switch ${one.address} has not answered for ${since}${one.reason ? ` (${one.reason})` : ""}. Jobs go on over custodians or Gloo.`, ""]);
    if (one.state === "failed") alarms.push([`failed${name}`, `The switch ${one.address} has failed: ${one.reason}`, ""]);
    if (one.state === "draining") alarms.push([`draining${name}`, `The switch ${one.address} takes no new jobs: it is draining.`, "warn"]);
  }
  if (isRun && view.state === "running" && !view.planner) alarms.push(["planner", `No planner is alive: jobs go on, nothing new starts. Go on with: paceline run --resume ${view.folder}`, "warn"]);
  if (isRun) for (const server of Object.values(view.servers)) if (server.state !== "up" && view.ended_s === undefined) alarms.push([`down${server.name}`, `Server ${server.name} is down: ${server.reason}`, "warn"]);
  keyed($("alarms"), alarms, ([key]) => key, () => el("p"), (node, [, sentence, kind]) => { attribute(node, "class", kind); text(node, sentence); });
}
