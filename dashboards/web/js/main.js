// The frame: which view, which run, and when to ask again.

import { h, put, say } from "./dom.js";
import { sql } from "./ask.js";
import { brief } from "./words.js";
import * as fleet from "./fleet.js";
import * as experts from "./experts.js";
import * as requests from "./requests.js";
import * as request from "./request.js";
import * as query from "./query.js";

const VIEWS = { "": fleet, experts, requests, request, sql: query };
const EVERY = 2000;
const main = document.getElementById("main");
const runs = document.getElementById("run");
const live = document.getElementById("live");
const trouble = document.getElementById("trouble");

let view = null;
let asking = null;
let timer = null;

/** What views are given. */
const frame = { main, get run() { return runs.value || null; }, get live() { return live.getAttribute("aria-pressed") === "true"; }, again };

function route() {
  const [path, parameters] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { name, rest: rest.map(decoded), parameters: new URLSearchParams(parameters) };
}

/** A part of an address; as it is where it was cut inside an escape. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

async function show() {
  const at = route();
  asking?.abort();
  clearTimeout(timer);
  const module = VIEWS[at.name] ?? fleet;
  for (const link of document.querySelectorAll(".top nav a")) {
    const here = link.getAttribute("href").replace(/^#\/?/, "") === (at.name === "request" ? "requests" : at.name);
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view = module.open(frame, at);
  document.title = `${view.title} · Gatescope`;
  put(main, view.element);
  // Until it shows something: those who listen are told to wait, and a line at the top says so to those who look.
  main.setAttribute("aria-busy", String(Boolean(view.refresh)));
  say(view.title);
  await refresh();
}

/** Asks what the view shows; one question at a time, and none while nobody looks. */
async function refresh() {
  clearTimeout(timer);
  // An older answer that comes after a newer one would show what nobody has chosen any more.
  asking?.abort();
  const asked = view;
  const mine = (asking = new AbortController());
  try {
    await refreshRuns(mine.signal);
    await asked.refresh?.(mine.signal);
    if (asked === view) main.setAttribute("aria-busy", "false");
    trouble.hidden = true;
  } catch (error) {
    if (error.name === "AbortError" || mine !== asking) return;
    trouble.hidden = false;
    trouble.textContent = error instanceof TypeError ? "The server does not answer; trying again." : error.message;
  }
  if (mine === asking && asked.refresh && frame.live) timer = setTimeout(again, EVERY);
}

function again() {
  if (document.hidden) timer = setTimeout(again, EVERY);
  else refresh();
}

let runsAsked = 0;

async function refreshRuns(signal) {
  if (Date.now() - runsAsked < 10_000 && runs.options.length) return;
  runsAsked = Date.now();
  const found = await sql("SELECT run, count(*) AS requests, sum(rows) AS rows FROM requests GROUP BY run ORDER BY requests DESC LIMIT 50", { signal });
  const chosen = runs.value || found.find((one) => one.run === "default")?.run || found[0]?.run;
  put(runs, found.map((one) => h("option", { value: one.run }, one.run)));
  if (chosen) runs.value = chosen;
  const rows = found.reduce((sum, one) => sum + (one.rows ?? 0), 0);
  document.getElementById("shape").textContent = rows ? `${brief(rows)} positions in ${found.length} run${found.length > 1 ? "s" : ""}` : "";
}

document.getElementById("origin").textContent = location.origin;
window.addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); scrollTo(0, 0); });
document.addEventListener("visibilitychange", () => { if (!document.hidden && frame.live) refresh(); });
runs.addEventListener("change", show);
live.addEventListener("click", () => {
  live.setAttribute("aria-pressed", String(!frame.live));
  live.querySelector("span").textContent = frame.live ? "live" : "paused";
  if (frame.live) refresh();
  else clearTimeout(timer);
});
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("gatescope-theme", root.dataset.theme); } catch { /* it lasts as long as the page */ }
  view?.repaint?.();
});
show();
