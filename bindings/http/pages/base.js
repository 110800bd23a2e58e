// Where the runtime is, seen from these files: behind a proxy it may stand below a path.

export const BASE = new URL("../", import.meta.url);

// Addresses of the API are written without a leading slash.
export const at = (target) => new URL(target, BASE).href;

export const path = (text) => encodeURIComponent(text);

export class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

export async function refusalOf(reply) {
  let problem = null;
  try {
    problem = await reply.json();
  } catch {
    // Not ours: a proxy's page, perhaps.
  }
  return new Refusal(reply.status, problem ?? {});
}
