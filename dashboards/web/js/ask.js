// Questions to the server, all of them SQL.

export class Refused extends Error {}

/** Rows of a statement, as objects. */
export async function sql(query, { signal } = {}) {
  const answer = await post(query, "application/json", signal);
  return answer.json();
}

/** The answer as a file. */
export async function file(query, media) {
  return (await post(query, media)).blob();
}

async function post(query, accept, signal) {
  const answer = await fetch("api/v1/sql", {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: accept },
    body: JSON.stringify({ query }),
    signal,
  });
  if (answer.ok) return answer;
  const body = await answer.text();
  let detail = body;
  try {
    const problem = JSON.parse(body);
    detail = problem.detail ?? problem.title ?? body;
  } catch {
    // No problem document: the text says it.
  }
  throw new Refused(detail || `HTTP ${answer.status}`);
}

/** A text as SQL. */
export const quoted = (text) => `'${String(text).replaceAll("'", "''")}'`;
