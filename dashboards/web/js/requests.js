// The list of requests, filtered and paged by the server.

import { h, put, table } from "./dom.js";
import { quoted, sql } from "./ask.js";
import { CHECKS } from "./checks.js";
import { ago, count } from "./words.js";

const PAGE = 40;
const KEYS = ["q", "status", "check", "instance", "page"];

export function open(frame, { parameters }) {
  const chosen = Object.fromEntries(KEYS.map((key) => [key, parameters.get(key) ?? ""]));
  const list = h("div");
  const pager = h("div.pager");
  const search = h("input", { type: "search", id: "f-q", placeholder: "request id…", "aria-label": "Request id contains", value: chosen.q, onchange: () => go({ q: search.value }) });
  const instance = h("input", { id: "f-instance", placeholder: "instance…", "aria-label": "Instance", size: 14, value: chosen.instance, onchange: () => go({ instance: instance.value }) });
  const filters = h("form.filters", { role: "search", onsubmit: (event) => { event.preventDefault(); go({ q: search.value, instance: instance.value }); } }, search,
    pick("status", "Status", [["", "any status"], ["whole", "whole"], ["incomplete", "incomplete"], ["conflict", "conflict"], ["open", "open"]]),
    pick("check", "Check", [["", "any finding or none"], ["any", "any finding"], ...Object.entries(CHECKS).map(([code, [name]]) => [code, `${code} ${name}`])]),
    instance, h("button", { type: "submit" }, "Filter"),
    KEYS.some((key) => chosen[key]) && h("a", { href: "#/requests" }, "clear"));
  const element = h("section.panel", { "aria-labelledby": "h-requests" }, h("header", {}, h("h1", { id: "h-requests" }, "Requests"), h("div.controls", {}, filters)), list, pager);

  function pick(key, label, options) {
    const select = h("select", { id: `f-${key}`, "aria-label": label, onchange: () => go({ [key]: select.value }) }, options.map(([value, text]) => h("option", { value }, text)));
    select.value = chosen[key];
    return select;
  }

  function go(change) {
    const next = { ...chosen, page: "", ...change };
    const query = new URLSearchParams(Object.entries(next).filter(([, value]) => value));
    location.hash = `#/requests${query.size ? `?${query}` : ""}`;
  }

  async function refresh(signal) {
    const page = Number(chosen.page) || 0;
    const conditions = ["1 = 1"];
    if (frame.run) conditions.push(`run = ${quoted(frame.run)}`);
    if (chosen.q) conditions.push(`strpos(request_id, ${quoted(chosen.q)}) > 0`);
    if (chosen.status) conditions.push(`status = ${quoted(chosen.status)}`);
    if (chosen.instance) conditions.push(`(prefill_instance = ${quoted(chosen.instance)} OR decode_instance = ${quoted(chosen.instance)})`);
    if (chosen.check) {
      const which = chosen.check === "any" ? "" : ` AND m.check = ${quoted(chosen.check)}`;
      // The same id may be in another run, or have another choice, that is clean.
      conditions.push(`EXISTS (SELECT 1 FROM mismatches AS m WHERE m.run = requests.run AND m.request_id = requests.request_id AND m.choice = requests.choice${which})`);
    }
    const rows = await sql(`SELECT request_id, choice, run, status, prompt_tokens, completion_tokens, rows, expected_rows, prefill_instance, decode_instance,
      attempts, findings, coalesce(finished_at, started_at, closed_at) AS at FROM requests WHERE ${conditions.join(" AND ")}
      ORDER BY at DESC NULLS LAST, request_id LIMIT ${PAGE + 1} OFFSET ${page * PAGE}`, { signal });
    const shown = rows.slice(0, PAGE);
    put(list, shown.length ? table(["request", "status", ["prompt", "n"], ["completion", "n"], ["rows", "n"], "prefill", "decode", ["findings", "n"], ["when", "n"]], shown, row)
      : h("p.empty", {}, "No request is like that."));
    put(pager,
      page > 0 && h("button", { type: "button", id: "p-newer", onclick: () => go({ page: page > 1 ? String(page - 1) : "" }) }, "‹ newer"),
      (page > 0 || rows.length > PAGE) && h("span", {}, `page ${page + 1}`),
      rows.length > PAGE && h("button", { type: "button", id: "p-older", onclick: () => go({ page: String(page + 1) }) }, "older ›"));
  }

  return { title: "Requests", element, refresh };
}

export function requestLink(one) {
  const parameters = new URLSearchParams({ run: one.run, choice: one.choice ?? 0 });
  return `#/request/${encodeURIComponent(one.request_id)}?${parameters}`;
}

function row(one) {
  return h("tr", {},
    h("td.mono", {}, h("a", { href: requestLink(one) }, one.request_id.length > 44 ? `${one.request_id.slice(0, 42)}…` : one.request_id), one.choice ? ` #${one.choice}` : ""),
    h("td", {}, h(`span.tag.${one.status}`, {}, one.status)),
    h("td.n", {}, count(one.prompt_tokens)), h("td.n", {}, count(one.completion_tokens)),
    h("td.n", {}, one.rows === one.expected_rows || one.expected_rows === null ? count(one.rows) : `${count(one.rows)} of ${count(one.expected_rows)}`),
    h("td.mono", {}, one.prefill_instance ?? "–"), h("td.mono", {}, one.decode_instance ?? "–"),
    h("td.n", {}, one.findings ? h("strong", {}, count(one.findings)) : "–"), h("td.n", {}, ago(one.at)));
}
