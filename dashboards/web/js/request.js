// One request: who computed which positions, what was found, and the rows.

import { h, put, table } from "./dom.js";
import { quoted, sql } from "./ask.js";
import { CHECKS } from "./checks.js";
import { clock, count } from "./words.js";

const ROWS = 60;

export function open(frame, { rest, parameters }) {
  const id = rest[0] ?? "";
  const run = parameters.get("run") ?? frame.run ?? "default";
  const choice = Number(parameters.get("choice") ?? 0);
  const key = `run = ${quoted(run)} AND request_id = ${quoted(id)} AND choice = ${choice}`;
  const facts = h("dl.facts");
  const bar = h("div");
  const findings = h("div");
  const rows = h("div");
  const status = h("span");
  let layer = null;
  let from = 0;
  const layers = h("select", { id: "r-layer", "aria-label": "Layer", onchange: () => { layer = Number(layers.value); showRows().catch(wrong); } });
  const start = h("input", { id: "r-from", type: "number", min: "0", value: "0", size: 7, "aria-label": "First position", onchange: () => { from = Math.max(0, Number(start.value) || 0); showRows().catch(wrong); } });
  const link = h("a", { href: `#/sql?q=${encodeURIComponent(`SELECT * FROM routing(${quoted(id)}, ${choice}, ${quoted(run)}) ORDER BY position, layer LIMIT 100`)}` }, "as SQL");
  const element = h("div", { style: { display: "contents" } },
    h("section.panel", {}, h("header", {}, h("h1.mono", { style: { "overflow-wrap": "anywhere" } }, id + (choice ? ` #${choice}` : "")), status), facts),
    h("section.panel", { "aria-labelledby": "h-bar" }, h("header", {}, h("h2", { id: "h-bar" }, "Positions"), h("p", {}, "who computed which")), bar),
    h("section.panel", { "aria-labelledby": "h-found" }, h("header", {}, h("h2", { id: "h-found" }, "Findings")), findings),
    h("section.panel", { "aria-labelledby": "h-rows" }, h("header", {}, h("h2", { id: "h-rows" }, "Rows"), link, h("div.controls", {}, h("label.pick", {}, "layer ", layers), h("label.pick", {}, "from position ", start))), rows));
  let shown = "";

  const wrong = (error) => put(rows, h("p.wrong", {}, error.message));

  async function refresh(signal) {
    const [found] = await sql(`SELECT * FROM requests WHERE ${key}`, { signal });
    if (!found) {
      put(status, h("span.tag.open", {}, "unknown"));
      put(bar, h("p.empty", {}, `No request ${id} in run ${run}.`));
      return;
    }
    const [spans, faults] = await Promise.all([
      sql(`SELECT role, instance, attempt, start, rows FROM captures WHERE ${key} AND start IS NOT NULL ORDER BY start LIMIT 5000`, { signal }),
      sql(`SELECT * FROM mismatches WHERE ${key} ORDER BY severity, check, position LIMIT 500`, { signal }),
    ]);
    const now = JSON.stringify([found, spans.length, faults.length]);
    if (now === shown) return;
    put(status, h(`span.tag.${found.status}`, {}, found.status));
    const overlap = found.overlap_rows ? `${count(found.mismatched_rows)} of ${count(found.overlap_rows)} differ` : "none";
    const list = [["run", found.run], ["model", found.model ?? "–"], ["prompt + completion", `${count(found.prompt_tokens)} + ${count(found.completion_tokens)} tokens`],
      ["rows", `${count(found.rows)} of ${count(found.expected_rows)}`], ["overlap", overlap], ["first forward of decode", count(found.first_forward)],
      ["prefill", found.prefill_instance ?? "–"], ["decode", found.decode_instance ?? "–"], ["attempts", count(found.attempts)], ["generation", count(found.generation)],
      ["started, finished", `${clock(found.started_at)} – ${clock(found.finished_at)}`]];
    put(facts, list.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    put(bar, lanes(found, spans));
    put(findings, faults.length ? findingTable(faults) : h("p.calm", {}, h("span", { "aria-hidden": "true" }, "✓"), found.status === "open" ? "Open: checks run when it closes." : "None."));
    await showRows(signal);
    // Only now: what was interrupted half-way is shown again.
    shown = now;
  }

  async function showRows(signal) {
    const of = `FROM routing(${quoted(id)}, ${choice}, ${quoted(run)})`;
    if (layer === null) {
      const known = await sql(`SELECT DISTINCT layer ${of} ORDER BY layer`, { signal });
      put(layers, known.map((one) => h("option", { value: one.layer }, one.layer)));
      if (!known.length) {
        put(rows, h("p.empty", {}, "No rows yet."));
        return;
      }
      layer = known[0].layer;
    }
    const list = await sql(`SELECT position, phase, role, experts ${of} WHERE layer = ${Number(layer)} AND position >= ${from} ORDER BY position LIMIT ${ROWS}`, { signal });
    put(rows, list.length ? table([["position", "n"], "phase", "from", "experts, in slot order"], list, (one) => h("tr", {},
      h("td.n", {}, one.position), h("td", {}, one.phase), h("td", {}, h("span", { class: one.role }, h("i.dot", { "aria-hidden": "true" }), h("span.name", {}, one.role))), h("td", {}, ids(one.experts)))) : h("p.empty", {}, "No rows here."));
  }

  return { title: `Request ${id}`, element, refresh };
}

function ids(list, other = null) {
  return h("span.ids", {}, (list ?? []).map((expert) => h("span", { class: other && !other.includes(expert) ? "other" : null }, expert)));
}

/** A bar a source, and one of what was accepted; positions from left to right. */
function lanes(found, spans) {
  const end = Math.max(found.expected_rows ?? 0, ...spans.map((span) => span.start + span.rows), 1);
  const at = (from, to, kind, title) => h(`b.${kind}`, { title, style: { left: `${(100 * from) / end}%`, width: `${(100 * (to - from)) / end}%` } });
  const sources = new Map();
  for (const span of spans) {
    const name = `${span.role} ${span.instance}${span.attempt ? ` attempt ${span.attempt}` : ""}`;
    const known = sources.get(name) ?? { kind: span.attempt ? "recomputed" : span.role, ranges: [] };
    const last = known.ranges.at(-1);
    if (last && last[1] >= span.start) last[1] = Math.max(last[1], span.start + span.rows);
    else known.ranges.push([span.start, span.start + span.rows]);
    sources.set(name, known);
  }
  const covered = [...sources.values()].filter((source) => source.kind !== "trainer").flatMap((source) => source.ranges);
  const overlaps = [];
  covered.forEach(([a, b], one) => covered.slice(one + 1).forEach(([c, d]) => {
    if (Math.max(a, c) < Math.min(b, d)) overlaps.push([Math.max(a, c), Math.min(b, d)]);
  }));
  const accepted = (found.segments ?? []).map((segment) => at(segment.start, segment.end, segment.attempt ? "recomputed" : segment.role, `${segment.start}–${segment.end - 1}: ${segment.role} ${segment.instance}`));
  const gaps = found.status === "open" ? [] : (found.gaps ?? []).map((gap) => at(gap.start, gap.end, "gap", `${gap.start}–${gap.end - 1}: no row`));
  const both = overlaps.map(([from, to]) => at(from, to, "overlap", `${from}–${to - 1}: computed twice`));
  const kinds = [...new Set([...[...sources.values()].map((source) => source.kind), ...(both.length ? ["overlap"] : []), ...(gaps.length ? ["gap"] : [])])];
  const lane = (name, label, children, total) => [h("span", {}, label), h(`div.bar${total ? ".total" : ""}`, { role: "img", "aria-label": name }, children)];
  const prompt = found.prompt_tokens;
  return [
    h("div.lanes", {},
      lane("accepted rows", h("strong", {}, "joined"), [accepted, both, gaps], true),
      [...sources].map(([name, { kind, ranges }]) => lane(name, h("span", {}, h("span", { class: kind }, h("i.dot", { "aria-hidden": "true" })), name), ranges.map(([from, to]) => at(from, to, kind, `${from}–${to - 1}`)))),
      h("span"), h("div.axis", {}, h("span", { style: { left: "0" } }, "0"),
        prompt && prompt < end * 0.93 && prompt > end * 0.07 ? h("span", { style: { left: `${(100 * prompt) / end}%` } }, `prompt ends ${prompt - 1}`) : null,
        h("span.end", { style: { left: "100%" } }, end - 1))),
    h("div.legend", {}, kinds.map((kind) => h("span", {}, h("span", { class: kind }, h("i.dot", { "aria-hidden": "true" })), kind === "overlap" ? "computed twice" : kind === "gap" ? "no row" : kind))),
  ];
}

function findingTable(faults) {
  return table(["check", "where", "side a", "side b", "what"], faults, (one) => h("tr", {},
    h("td", {}, h(`span.tag.${one.severity}`, { title: CHECKS[one.check]?.[1] }, one.check), h("div", {}, CHECKS[one.check]?.[0] ?? "")),
    h("td", {}, one.position === null ? "–" : `position ${one.position}`, one.layer === null ? null : h("div", {}, `layer ${one.layer}`)),
    side(one.role_a, one.instance_a, one.experts_a, one.experts_b), side(one.role_b, one.instance_b, one.experts_b, one.experts_a),
    h("td.wrap", {}, one.detail)));
}

function side(role, instance, experts, other) {
  if (!role) return h("td", {}, "–");
  return h("td", {}, h("span", { class: role }, h("i.dot", { "aria-hidden": "true" }), h("span.name", {}, role, instance ? ` ${instance}` : "")), experts?.length ? h("div", {}, ids(experts, other?.length ? other : null)) : null);
}
