// Expert load by role, phase, instance and time: the picture, and the layers in numbers.

import { h, put, table } from "./dom.js";
import { quoted, sql } from "./ask.js";
import { Heatmap, grid } from "./heatmap.js";
import { load, loadQuery } from "./load.js";
import { brief, count, percent } from "./words.js";

const TIMES = [["5", "5 minutes"], ["15", "15 minutes"], ["60", "hour"], ["1440", "day"], ["", "all time"]];

export function open(frame, { parameters }) {
  const chosen = { role: parameters.get("role") ?? "", phase: parameters.get("phase") ?? "", instance: parameters.get("instance") ?? "", minutes: parameters.get("minutes") ?? "15" };
  const map = new Heatmap();
  const other = new Heatmap();
  const layers = h("div");
  const link = h("a", {}, "as SQL");
  const instances = pick("instance", "Instance", [["", "all instances"]]);
  const controls = [
    pick("role", "Role", [["", "all roles"], ["prefill", "prefill"], ["decode", "decode"], ["colocated", "colocated"], ["both", "prefill beside decode"]]),
    pick("phase", "Phase", [["", "prompt and completion"], ["prompt", "prompt"], ["completion", "completion"]]),
    instances,
    pick("minutes", "Time", TIMES),
  ];
  const second = h("section.panel", { hidden: true, "aria-label": "decode" }, h("header", {}, h("h2.decode", {}, "decode")), other.element);
  const title = h("h2", { id: "h-map" }, "Tokens by layer and expert");
  const element = h("div", { style: { display: "contents" } }, h("h1.unseen", {}, "Experts"),
    h("section.panel", { "aria-labelledby": "h-map" }, h("header", {}, title, link, h("div.controls", {}, controls)), map.element), second,
    h("section.panel", { "aria-labelledby": "h-layers" }, h("header", {}, h("h2", { id: "h-layers" }, "Layers"), h("p", {}, "the most uneven first")), layers));

  function pick(key, label, options) {
    const select = h("select", { id: `pick-${key}`, "aria-label": label, onchange: () => { chosen[key] = select.value; frame.again(); } },
      options.map(([value, text]) => h("option", { value }, text)));
    select.value = chosen[key];
    return select;
  }

  async function refresh(signal) {
    const run = frame.run;
    const known = await sql(`SELECT DISTINCT instance FROM expert_load WHERE ${run ? `run = ${quoted(run)}` : "1 = 1"} ORDER BY 1 LIMIT 200`, { signal });
    if (document.activeElement !== instances) {
      put(instances, h("option", { value: "" }, "all instances"), known.map((one) => h("option", { value: one.instance }, one.instance)));
      instances.value = chosen.instance;
    }
    const beside = chosen.role === "both";
    const asked = { ...chosen, run, role: beside ? "prefill" : chosen.role };
    const [cells, more] = await Promise.all([load(asked, signal), beside ? load({ ...asked, role: "decode" }, signal) : []]);
    link.href = `#/sql?q=${encodeURIComponent(loadQuery(asked))}`;
    title.textContent = beside ? "prefill" : "Tokens by layer and expert";
    title.className = beside ? "prefill" : "";
    second.hidden = !beside;
    const rows = grid(cells);
    map.show(rows);
    if (beside) other.show(grid(more));
    put(layers, rows.length ? layerTable(rows) : h("p.empty", {}, "No load in this time."));
  }

  return { title: "Experts", element, refresh, repaint: () => { map.paint(); other.paint(); } };
}

function layerTable(rows) {
  const entropy = (row) => {
    const bits = row.tokens.reduce((sum, tokens) => (tokens ? sum - (tokens / row.sum) * Math.log2(tokens / row.sum) : sum), 0);
    return bits / Math.log2(row.tokens.length || 2);
  };
  const sorted = [...rows].sort((a, b) => b.imbalance - a.imbalance).slice(0, 24);
  return table([["layer", "n"], ["tokens", "n"], ["busiest over mean", "n"], ["busiest expert", "n"], ["its share", "n"], ["unused experts", "n"], ["evenness", "n"]], sorted, (row) => h("tr", {},
    h("td.n", {}, row.layer), h("td.n", {}, brief(row.sum)), h("td.n", {}, row.imbalance.toFixed(2)), h("td.n", {}, row.top),
    h("td.n", {}, percent(row.sum ? row.tokens[row.top] / row.sum : 0)), h("td.n", {}, `${count(row.dead)} of ${row.tokens.length}`), h("td.n", {}, percent(row.sum ? entropy(row) : 0))));
}
