// Server-sent events: a run grew, appeared or went. The browser connects again by itself, unless
// the server refused because it already has its maximum number of listeners.

export function follow({ grew, state }) {
  const source = new EventSource("/events");
  source.addEventListener("open", () => state("live"));
  source.addEventListener("error", () => state(source.readyState === EventSource.CLOSED ? "refused" : "lost"));
  source.addEventListener("message", (message) => {
    let event;
    try {
      event = JSON.parse(message.data);
    } catch {
      return; // a line that is not an event
    }
    grew(event);
  });
  return source;
}
