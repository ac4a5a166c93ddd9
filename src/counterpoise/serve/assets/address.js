// Addresses: what the page shows is in the address, so that a link shows the same to a colleague.

const segment = (text) => encodeURIComponent(text);

export const to = {
  runs: () => "/",
  run: (name) => `/runs/${segment(name)}`,
  iteration: (name, iteration) => `${to.run(name)}/iterations/${iteration}`,
  group: (name, iteration, group) => `${to.iteration(name, iteration)}/groups/${segment(group)}`,
  rollouts: (name, query = {}) => `${to.run(name)}/rollouts${queryString(query)}`,
  prompts: (name) => `${to.run(name)}/prompts`,
  prompt: (name, id) => `${to.run(name)}/prompts/${segment(id)}`,
  trace: (name) => `${to.run(name)}/trace`,
  types: (name) => `${to.run(name)}/types`,
  audit: (name) => `${to.run(name)}/audit`,
  diff: (name, left, right) => `${to.run(name)}/diff${queryString({ left, right })}`,
  overlay: (names) => `/overlay?${names.map((name) => `run=${segment(name)}`).join("&")}`,
};

export function queryString(query) {
  const parameters = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value !== "" && value !== null && value !== undefined && value !== false) parameters.set(key, value);
  }
  const text = parameters.toString();
  return text ? `?${text}` : "";
}

// The runs of an overlay's address; older addresses have runs=A,B.
export const overlaid = (query) => (query.has("run") ? query.getAll("run") : (query.get("runs") ?? "").split(","));

const ROUTES = [
  ["runs", /^\/$/, []],
  ["overlay", /^\/overlay$/, []],
  ["run", /^\/runs\/([^/]+)$/, ["run"]],
  ["iteration", /^\/runs\/([^/]+)\/iterations\/(\d+)$/, ["run", "iteration"]],
  ["iteration", /^\/runs\/([^/]+)\/iterations\/(\d+)\/groups\/([^/]+)$/, ["run", "iteration", "group"]],
  ["rollouts", /^\/runs\/([^/]+)\/rollouts$/, ["run"]],
  ["rollout", /^\/runs\/([^/]+)\/rollouts\/(\d+)\/([^/]+)\/(\d+)$/, ["run", "iteration", "group", "index"]],
  ["rollout", /^\/runs\/([^/]+)\/rollouts\/(\d+)\/([^/]+)\/(\d+)\/tokens\/(\d+)$/, ["run", "iteration", "group", "index", "position"]],
  ["prompts", /^\/runs\/([^/]+)\/prompts$/, ["run"]],
  ["prompt", /^\/runs\/([^/]+)\/prompts\/([^/]+)$/, ["run", "prompt"]],
  ["diff", /^\/runs\/([^/]+)\/diff$/, ["run"]],
  ["trace", /^\/runs\/([^/]+)\/trace$/, ["run"]],
  ["types", /^\/runs\/([^/]+)\/types$/, ["run"]],
  ["audit", /^\/runs\/([^/]+)\/audit$/, ["run"]],
];
const NUMBERS = new Set(["iteration", "index", "position"]);

// { view, path, search, query, run, ... } of a URL; view is null where no view has that address.
export function parse(url) {
  const path = url.pathname.length > 1 ? url.pathname.replace(/\/$/, "") : url.pathname;
  for (const [view, pattern, names] of ROUTES) {
    const match = pattern.exec(path);
    if (!match) continue;
    const address = { view, path, search: url.search, query: url.searchParams };
    names.forEach((name, k) => {
      const text = decode(match[k + 1]);
      address[name] = NUMBERS.has(name) ? Number(text) : text;
    });
    return address;
  }
  return { view: null, path, search: url.search, query: url.searchParams };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a stray percent sign
  }
}
