// Numbers and times for people.

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
