// Numbers and times for people, and what each check means.

const number = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "–" : number.format(value));
export const brief = (value) => (Math.abs(value ?? 0) < 10_000 ? count(Math.round(value ?? 0)) : short.format(value));
export const percent = (share, digits = 1) => `${(100 * share).toFixed(share > 0 && share < 0.001 ? 3 : digits)} %`;
export const ratio = (value) => `${value.toFixed(value < 10 ? 2 : 1)}×`;

/** A time of the server's, which has no zone and is UTC. */
export const time = (text) => new Date(/[zZ]|[+-]\d\d:?\d\d$/.test(text) ? text : `${text}Z`);

export function ago(text) {
  if (!text) return "–";
  const seconds = Math.max(0, (Date.now() - time(text)) / 1000);
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} d ago`;
}

export const clock = (text) => (text ? time(text).toLocaleTimeString("en-GB") : "–");

export const CHECKS = {
  GS001: ["rows missing", "Positions that should have a row have none."],
  GS002: ["rows too many", "Rows lie past the last position that was fed to the model."],
  GS003: ["rows misplaced", "Rows disagree where they were placed and agree after a shift."],
  GS004: ["rows all zero", "Every id of a layer with a gate is 0: the row was never written."],
  GS005: ["same expert twice", "One top-k list names an expert twice."],
  GS006: ["id out of range", "An id is not below the model's number of experts."],
  GS008: ["unknown marks", "Rows carry the mark for “unknown” (-1) instead of ids."],
  GS009: ["wrong width", "Ids were cut to 8 bits on their way."],
  GS010: ["layers moved", "A layer carries another layer's rows, or a dense layer carries ids."],
  GS011: ["slot order differs", "The same experts in another order."],
  GS012: ["shape changes", "Spans of one request differ in layers, top_k or numeric type."],
  GS013: ["overlap disagrees", "Prefill and decode computed other experts for one position."],
  GS015: ["other weight version", "Rows of two generations meet in one request."],
  GS016: ["recomputed rows differ", "A later attempt computed other experts than the first."],
  GS017: ["starts inside a block", "Rows that begin inside a KV block were taken to begin with it."],
  GS018: ["one role only", "A decode came without its prefill, or a prefill without its decode."],
  GS019: ["two answers", "Two first attempts of one role answered the same positions."],
  GS020: ["late rows", "Rows came after their request was closed."],
  GS022: ["prefix not resolvable", "A prefix that the caller left out is not known from the request it names."],
  GS023: ["trainer differs", "A trainer recomputed other experts than the rollout used."],
  GS026: ["one row for all", "Every token of a prompt chose the same experts."],
  GS028: ["capture lost rows", "The agent dropped rows and said which."],
  GS029: ["same block, other rows", "Rows of one KV block, by its hash, differ."],
  GS031: ["no routing", "A finished request has no row at all."],
};

export const checkName = (code) => CHECKS[code]?.[0] ?? "";
