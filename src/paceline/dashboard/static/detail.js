// One job, on a click; and what somebody with the token may ask of a run.

import { $, attribute, el, seconds, svg, text } from "./dom.js";
import { drawCurve } from "./charts.js";

const TEMPLATE = `[[jobs]]
name = "mine"
gpus = 1
iterations = 100
gradient = "10 MB"
backward = "100 ms"
command = "python train.py"
workdir = "."
`;
let token = "", shown = null, timer = 0, rank = 0, source = "";

export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) { sessionStorage.setItem("paceline-token", given); history.replaceState(null, "", location.pathname); }
  token = sessionStorage.getItem("paceline-token") ?? "";
}

export function openedJob() { return shown; }

export function openJob(run, name) {
  shown = name; rank = 0; source = run;
  $("detail").hidden = false;
  $("detail").replaceChildren(el("p", { class: "empty" }, "…"));
  clearInterval(timer);
  timer = setInterval(refresh, 1000);
  return refresh();
}

export function closeJob() { shown = null; clearInterval(timer); $("detail").hidden = true; }

async function refresh() {
  const name = shown;
  let detail;
  try {
    const answer = await fetch(`/api/runs/${encodeURIComponent(source)}/jobs/${encodeURIComponent(name)}?rank=${rank}`);
    detail = await answer.json();
    if (!answer.ok) throw new Error(detail.error);
  } catch (error) {
    if (shown === name && !$("detail").dataset.job) $("detail").replaceChildren(el("p", { class: "empty" }, String(error.message)));
    return;
  }
  if (shown === name) draw(detail);
}

function draw(detail) {
  const panel = $("detail"), busy = panel.contains(document.activeElement) && document.activeElement.tagName === "INPUT" ? document.activeElement : null;
  const log = panel.querySelector("pre"), atEnd = !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
  if (panel.dataset.job !== detail.name || !log) build(panel, detail);
  const part = (id) => panel.querySelector(`[data-part="${id}"]`);
  text(part("state"), detail.state);
  part("state").className = `state ${detail.state}`;
  const over = ["done", "failed", "stopped", "cancelled"].includes(detail.state);
  text(part("asked"), detail.state === "failed" ? "Why it failed" : over ? "How it ended" : "Why it is there");
  text(part("why"), detail.why || "nothing to say yet");
  text(part("plan"), over ? "" : detail.plan);
  text(part("command"), detail.command);
  text(part("path"), detail.log_path);
  const lines = detail.log || "(nothing was written yet)";
  if (part("log").textContent !== lines) { part("log").textContent = lines; if (atEnd) part("log").scrollTop = part("log").scrollHeight; }
  const chooser = part("rank"), ranks = detail.ranks.length ? detail.ranks : [0];
  if (chooser.childElementCount !== ranks.length) chooser.replaceChildren(...ranks.map((number) => el("option", { value: String(number) }, `rank ${number}`)));
  chooser.value = String(detail.rank);
  part("attempts").replaceChildren(...detail.attempts.map((each) => el("p", {}, `attempt ${each.number} on ${each.servers.join(", ")}: ${each.outcome || (each.state === "released" ? "runs" : each.state)}, ${seconds(each.start_s)} to ${each.end_s === undefined ? "now" : seconds(each.end_s)}${each.reason ? ` (${each.reason})` : ""}`)));
  text(part("lost"), detail.lost ? `${detail.lost} attempts lost with their server` : "no attempt was lost");
  for (const key of ["loss", "rate"]) {
    part(key).parentNode.hidden = !detail.curves[key];
    if (detail.curves[key]) drawCurve(part(key), detail.curves[key], key, key === "loss" && detail.loss_from === "log");
  }
  text(part("loss").parentNode.firstChild, detail.loss_from === "log" ? "Loss, as the end of the log has it, line by line" : "Loss");
  part("no-loss").hidden = Boolean(detail.curves.loss);
  part("events").replaceChildren(...detail.events.slice().reverse().map((line) => el("p", {}, line)));
  attribute(part("priority"), "placeholder", `now ${detail.priority}`);
  part("actions").hidden = !token || ["done", "failed", "cancelled"].includes(detail.state);
  if (busy) busy.focus();
}

function build(panel, detail) {
  panel.dataset.job = detail.name;
  const named = (tag, part, more = {}) => el(tag, { "data-part": part, ...more });
  const chart = (part, label) => { const made = svg("svg", { "data-part": part, role: "img" }); return el("div", {}, el("h3", {}, label), made); };
  const priority = el("input", { "data-part": "priority", type: "number", min: "0.01", step: "any", placeholder: "priority", "aria-label": "New priority" });
  panel.replaceChildren(
    el("div", { class: "top" }, el("h2", {}, detail.name, " ", named("span", "state")), el("button", { type: "button", id: "close-detail", onclick: closeJob, "aria-label": "Close" }, "✕")),
    el("div", { class: "actions", "data-part": "actions" },
      el("button", { type: "button", class: "danger", id: "cancel-job", onclick: () => confirm(`Cancel ${detail.name}?`) && command(source, { kind: "cancel", job: detail.name }) }, "Cancel this job"),
      priority, el("button", { type: "button", id: "set-priority", onclick: () => command(source, { kind: "priority", job: detail.name, priority: Number(priority.value) }) }, "Set priority")),
    named("h3", "asked"), named("p", "why"), named("p", "plan", { class: "dim" }),
    el("h3", {}, "Log"), el("p", { class: "dim" }, named("select", "rank", { "aria-label": "Rank", onchange: (event) => { rank = Number(event.target.value); refresh(); } }), " ", named("span", "path")), named("pre", "log"),
    chart("loss", "Loss"), named("p", "no-loss", { class: "empty" }),
    chart("rate", "Iterations a second"),
    el("h3", {}, "Attempts"), named("div", "attempts"), named("p", "lost", { class: "dim" }),
    el("h3", {}, "Command"), named("p", "command"),
    el("h3", {}, "What happened to it"), named("div", "events"));
  text(panel.querySelector('[data-part="no-loss"]'), "The job tells no loss. It may: PACELINE_STATUS {\"loss\": 0.5}");
}

export async function command(run, body) {
  text($("said"), "asked …");
  const answer = await fetch(`/api/runs/${encodeURIComponent(run)}/commands`, { method: "POST", headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const said = await answer.json();
  text($("said"), said.error ?? said.outcome ?? said.state);
  if (answer.status === 401) { token = ""; sessionStorage.removeItem("paceline-token"); }
  refresh();
  return said;
}

export function steering(run, view, allowed) {
  $("steering").hidden = !allowed || !view;
  if (!view) return;
  const over = view.ended_s !== undefined;
  for (const id of ["pause", "add"]) { $(id).hidden = !token; $(id).disabled = over; }
  $("token").hidden = Boolean(token);
  text($("pause"), view.paused ? "Let the queue go on" : "Pause the queue");
  $("pause").onclick = () => command(run, { kind: view.paused ? "unpause" : "pause" });
  $("add").onclick = () => { $("add-text").value ||= TEMPLATE; $("add-dialog").showModal(); };
  $("add-send").onclick = () => command(run, { kind: "add", jobs: $("add-text").value });
  $("token").onclick = () => $("token-dialog").showModal();
  $("token-send").onclick = () => { token = $("token-text").value.trim(); sessionStorage.setItem("paceline-token", token); };
}
