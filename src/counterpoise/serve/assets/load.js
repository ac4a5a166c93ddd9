// JSON of an address, and what to say when there is none.

export class Problem extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

const WITHOUT_TOKEN = "Open the address that `poise serve` printed: it carries the access token.";

export async function load(address, signal) {
  const url = new URL(address, location.origin);
  url.searchParams.set("format", "json");
  let response;
  try {
    response = await fetch(url, { headers: { Accept: "application/json" }, credentials: "same-origin", signal });
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
    throw new Problem(0, "The server does not answer. Start it again with `poise serve`, then reload this page.");
  }
  let data = null;
  try {
    data = await response.json();
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
  }
  if (response.ok && data !== null) return data;
  throw new Problem(response.status, data?.problem ?? (response.status === 401 ? WITHOUT_TOKEN : `The server answered ${response.status}.`));
}
