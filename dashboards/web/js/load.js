// What is asked about expert load, by the fleet's view and by the experts' own.

import { quoted, sql } from "./ask.js";

/** Conditions on `expert_load`. */
export function where({ run, role, phase, instance, model, minutes }) {
  const conditions = ["1 = 1"];
  if (run) conditions.push(`run = ${quoted(run)}`);
  if (role) conditions.push(`role = ${quoted(role)}`);
  if (phase) conditions.push(`phase = ${quoted(phase)}`);
  if (instance) conditions.push(`instance = ${quoted(instance)}`);
  if (model) conditions.push(`model = ${quoted(model)}`);
  if (minutes) conditions.push(`minute >= now() - INTERVAL '${Number(minutes)} minutes'`);
  return conditions.join(" AND ");
}

export const loadQuery = (chosen) =>
  `SELECT layer, expert, sum(tokens) AS tokens FROM expert_load WHERE ${where(chosen)} GROUP BY layer, expert ORDER BY layer, expert`;

export const load = (chosen, signal) => sql(loadQuery(chosen), { signal });
