// A box for SQL.

import { h, put, say } from "./dom.js";
import { Refused, file, sql } from "./ask.js";
import { count } from "./words.js";

const EXAMPLES = {
  "status of requests": "SELECT status, count(*) AS requests, sum(rows) AS rows\nFROM requests GROUP BY status ORDER BY requests DESC",
  findings: "SELECT check, severity, count(*) AS findings, count(DISTINCT request_id) AS requests\nFROM mismatches GROUP BY check, severity ORDER BY check",
  "hottest experts": "SELECT layer, expert, sum(tokens) AS tokens\nFROM expert_load GROUP BY layer, expert ORDER BY tokens DESC LIMIT 20",
  "prefill against decode": "SELECT layer, role, max(tokens) * 1.0 / avg(tokens) AS busiest_over_mean\nFROM (SELECT layer, role, expert, sum(tokens) AS tokens FROM expert_load GROUP BY 1, 2, 3)\nGROUP BY layer, role ORDER BY busiest_over_mean DESC LIMIT 20",
  "who computed what": "SELECT request_id, segment['start'] AS start, segment['end'] AS \"end\", segment['role'] AS role\nFROM (SELECT request_id, unnest(segments) AS segment FROM requests) ORDER BY request_id, start LIMIT 50",
  tables: "SHOW TABLES",
};
const SHOWN = 500;

export function open(_, { parameters }) {
  const given = parameters.get("q");
  const box = h("textarea", { id: "query", spellcheck: "false", autocapitalize: "off", "aria-label": "SQL", value: given ?? Object.values(EXAMPLES)[0],
    onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } } });
  const go = h("button.first", { type: "button", onclick: () => run(), title: "Ctrl+Enter" }, "Run");
  const stop = h("button", { type: "button", disabled: true, onclick: () => asking?.abort() }, "Cancel");
  const state = h("span", { role: "status" });
  const result = h("div.result", { tabindex: "0", role: "region", "aria-label": "Result" });
  const save = (name, media) => h("button", { type: "button", onclick: () => download(name, media) }, name);
  let asking = null;
  const element = h("div", { style: { display: "contents" } },
    h("section.panel", { "aria-labelledby": "h-sql" }, h("header", {}, h("h1", { id: "h-sql" }, "SQL"), h("p", {}, "everything acknowledged, the newest second included; read only")),
      h("div.chips", { style: { "margin-bottom": "10px" } }, Object.entries(EXAMPLES).map(([name, text]) => h("button", { type: "button", onclick: () => { box.value = text; run(); } }, name))),
      box, h("div.filters", { style: { "margin-top": "10px" } }, go, stop, save("CSV", "text/csv"), save("Parquet", "application/vnd.apache.parquet"), state)),
    h("section.panel", { "aria-label": "Answer" }, result));

  async function run() {
    asking?.abort();
    const mine = (asking = new AbortController());
    stop.disabled = false;
    const begun = performance.now();
    const tick = setInterval(() => { state.textContent = `${((performance.now() - begun) / 1000).toFixed(1)} s…`; }, 100);
    try {
      const rows = await sql(box.value, { signal: mine.signal });
      const took = performance.now() - begun;
      const text = `${count(rows.length)} row${rows.length === 1 ? "" : "s"} in ${took < 1000 ? `${Math.round(took)} ms` : `${(took / 1000).toFixed(1)} s`}`;
      state.textContent = rows.length > SHOWN ? `${text}, the first ${SHOWN} shown` : text;
      say(text);
      put(result, rows.length ? answer(rows) : h("p.empty", {}, "No rows."));
    } catch (error) {
      state.textContent = error.name === "AbortError" ? "cancelled" : "";
      if (error.name !== "AbortError") put(result, h("p.wrong", { role: "alert" }, error instanceof Refused ? error.message : "The server does not answer."));
    } finally {
      clearInterval(tick);
      if (mine === asking) stop.disabled = true;
    }
  }

  async function download(name, media) {
    try {
      const link = h("a", { href: URL.createObjectURL(await file(box.value, media)), download: `gatescope.${name.toLowerCase()}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    } catch (error) {
      put(result, h("p.wrong", { role: "alert" }, error.message));
    }
  }

  if (given) queueMicrotask(run);
  return { title: "SQL", element };
}

function answer(rows) {
  const columns = [...new Set(rows.slice(0, SHOWN).flatMap((row) => Object.keys(row)))];
  const text = (value) => (value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));
  return h("table", {}, h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col" }, column)))),
    h("tbody", {}, rows.slice(0, SHOWN).map((row) => h("tr", {}, columns.map((column) => h(`td${typeof row[column] === "number" ? ".n" : ""}`, { title: text(row[column]).length > 60 ? text(row[column]) : null }, text(row[column])))))));
}
