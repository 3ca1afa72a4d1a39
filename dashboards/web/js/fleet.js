// The fleet: is everything whole, who is there, what is hot, what needs someone.

import { h, put, svg, table } from "./dom.js";
import { quoted, sql } from "./ask.js";
import { Heatmap, grid } from "./heatmap.js";
import { alertList, alerts } from "./alerts.js";
import { load } from "./load.js";
import { ago, brief, count, percent, time } from "./words.js";

const EMPTY = `# a simulated fleet, with faults to find
gatescope demo

# or your own: in the engine's environment
pip install ./gpu-capture
export GATESCOPE_COLLECTOR=grpc://HOST:7879
vllm serve MODEL --enable-return-routed-experts`;

export function open(frame) {
  const cards = h("section.cards", { "aria-label": "Summary" });
  const needs = h("div");
  const instances = h("div");
  const map = new Heatmap();
  const hottest = h("p");
  const empty = h("section.panel", { hidden: true }, h("div.empty", {}, h("h2", {}, "No request has come yet"), h("p", {}, "Start something that sends rows:"), h("pre", {}, EMPTY)));
  const parts = h("div", { style: { display: "contents" } }, cards,
    h("section.panel", { "aria-labelledby": "h-load" }, h("header", {}, h("h2", { id: "h-load" }, "Expert load"), hottest, h("div.controls", {}, h("a", { href: "#/experts" }, "by role, phase and instance"))), map.element),
    h("div.split", {},
      h("section.panel", { "aria-labelledby": "h-needs" }, h("header", {}, h("h2", { id: "h-needs" }, "Needs you")), needs),
      h("section.panel", { "aria-labelledby": "h-who" }, h("header", {}, h("h2", { id: "h-who" }, "Instances"), h("p", {}, "that sent rows in the last 15 minutes")), instances)));
  const element = h("div", { style: { display: "contents" } }, h("h1.unseen", {}, "Fleet"), empty, parts);

  async function refresh(signal) {
    const run = frame.run;
    const of = run ? `run = ${quoted(run)}` : "1 = 1";
    const [totals, pace, findings, named, who, cells] = await Promise.all([
      sql(`SELECT count(*) AS requests, count(*) FILTER (WHERE status = 'whole') AS whole, count(*) FILTER (WHERE status = 'incomplete') AS incomplete,
        count(*) FILTER (WHERE status = 'conflict') AS conflict, count(*) FILTER (WHERE status = 'open') AS open, sum(rows) AS rows,
        sum(overlap_rows) AS overlap, sum(mismatched_rows) AS mismatched FROM requests WHERE ${of}`, { signal }),
      sql(`SELECT date_bin(INTERVAL '10 seconds', closed_at) AS at, sum(rows) AS rows, count(*) AS requests FROM requests
        WHERE ${of} AND closed_at > now() - INTERVAL '10 minutes' GROUP BY 1 ORDER BY 1`, { signal }),
      sql(`SELECT check, min(severity) AS severity, count(*) AS findings, count(DISTINCT request_id) AS requests FROM mismatches
        WHERE ${of} AND at > now() - INTERVAL '10 minutes' GROUP BY check ORDER BY findings DESC`, { signal }),
      sql(`SELECT check, instance, count(*) AS findings FROM (SELECT check, unnest(make_array(instance_a, instance_b)) AS instance FROM mismatches
        WHERE ${of} AND at > now() - INTERVAL '10 minutes') WHERE instance IS NOT NULL GROUP BY check, instance ORDER BY findings DESC`, { signal }),
      sql(`SELECT instance, role, count(DISTINCT request_id) AS requests, sum(rows) AS rows, max(received_at) AS seen,
        max(generation) AS generation FROM captures WHERE ${of} AND received_at > now() - INTERVAL '15 minutes' GROUP BY 1, 2 ORDER BY 2 DESC, 1`, { signal }),
      load({ run, minutes: 10 }, signal),
    ]);
    const all = totals[0];
    empty.hidden = all.requests > 0;
    parts.hidden = all.requests === 0;
    parts.style.display = all.requests > 0 ? "contents" : "none";
    if (!all.requests) return;
    for (const finding of findings) finding.instance = most(finding, named);
    const rows = grid(cells);
    showCards(all, pace, findings);
    map.show(rows);
    const busiest = rows.reduce((best, row) => (row.imbalance > (best?.imbalance ?? 0) ? row : best), null);
    put(hottest, busiest ? `last 10 minutes · busiest: layer ${busiest.layer}, expert ${busiest.top}, ${busiest.imbalance.toFixed(1)}× the mean` : "no load in the last 10 minutes");
    const now = Date.now();
    const silent = who.map((one) => ({ ...one, silent: (now - time(one.seen)) / 1000 }));
    put(needs, alertList(alerts({ findings, rows, instances: silent })));
    put(instances, who.length ? table(["instance", "role", ["requests", "n"], ["rows", "n"], ["seen", "n"]], who, (one) => h("tr", {},
      h("td.mono", {}, one.instance), h("td", {}, h("span", { class: one.role }, h("i.dot", { "aria-hidden": "true" }), h("span.name", {}, one.role))),
      h("td.n", {}, count(one.requests)), h("td.n", {}, brief(one.rows)), h("td.n", {}, ago(one.seen)))) : h("p.empty", {}, "Nobody."));
  }

  function showCards(all, pace, findings) {
    const recent = pace.slice(-7, -1);
    const rate = recent.reduce((sum, one) => sum + one.rows, 0) / (10 * Math.max(recent.length, 1));
    const closed = all.requests - all.open;
    const found = findings.reduce((sum, one) => sum + one.findings, 0);
    const errors = findings.some((one) => one.severity === "error");
    const differing = all.overlap ? all.mismatched / all.overlap : 0;
    put(cards,
      card("Requests", count(all.requests), `${count(all.open)} open`),
      card("Whole", closed ? percent(all.whole / closed, 2) : "–", `${count(all.incomplete)} incomplete, ${count(all.conflict)} in conflict`, all.conflict ? "bad" : all.incomplete ? "warn" : "good"),
      card("Positions a second", brief(rate), "stored, last minute", "", spark(pace.map((one) => one.rows))),
      card("Overlap that disagrees", percent(differing, 2), `${brief(all.mismatched)} of ${brief(all.overlap)} rows that two computed`, differing > 0.01 ? "bad" : ""),
      card("Findings", count(found), "in 10 minutes", found ? (errors ? "bad" : "warn") : "good", spark([])));
  }

  return { title: "Fleet", element, refresh, repaint: () => map.paint() };
}

/** The instance that most findings of a check name, where one stands out. */
function most(finding, named) {
  const [first, second] = named.filter((one) => one.check === finding.check);
  return first && first.findings * 2 > finding.findings && first.findings > (second?.findings ?? 0) ? first.instance : null;
}

function card(title, value, text, kind = "", more = null) {
  return h("div.card", { class: kind }, h("span", {}, title), h("strong", {}, value), h("em", {}, text), more);
}

function spark(values) {
  if (values.length < 3) return null;
  const most = Math.max(...values, 1);
  const points = values.map((value, index) => `${((index * 100) / (values.length - 1)).toFixed(1)},${(29 - (24 * value) / most).toFixed(1)}`);
  return svg("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("polygon", { points: `0,30 ${points.join(" ")} 100,30`, fill: "var(--accent)", opacity: ".13" }),
    svg("polyline", { points: points.join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": "1.4", "vector-effect": "non-scaling-stroke" }));
}
