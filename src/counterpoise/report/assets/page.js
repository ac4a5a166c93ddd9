// What every panel may use: its data, large data, and the iteration the page is looking at.
const poise = {
  data(name) {
    return JSON.parse(document.getElementById(`data-${name}`).textContent);
  },

  // The inverse of `pack_json` in render.py.
  async unpack(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  },

  choose(iteration) {
    document.dispatchEvent(new CustomEvent("poise:iteration", { detail: iteration }));
  },

  // Charts, and the signals set so far: a chart that is drawn later gets them too.
  views: [],
  signals: {},
  signal(name, value) {
    if (this.signals[name] === value) return;
    this.signals[name] = value;
    for (const view of this.views) this.tell(view, name, value);
  },
  tell(view, name, value) {
    const { signals } = view.getState({ signals: (known) => known === name });
    if (name in signals && signals[name] !== value) view.signal(name, value).runAsync();
  },

  // Show one rollout, by its row in the iteration's plan, in the token view.
  open(iteration, row) {
    document.dispatchEvent(new CustomEvent("poise:rollout", { detail: { iteration, row } }));
  },
};

// Charts: one cursor for all of them.
(async () => {
  const config = JSON.parse(document.getElementById("theme").textContent);
  const point = (place) => poise.signal("at", place);
  for (const script of document.querySelectorAll("script.specification")) {
    const chart = script.parentElement.querySelector(".chart");
    const { view } = await vegaEmbed(chart, JSON.parse(script.textContent), {
      mode: "vega-lite",
      renderer: "svg",
      actions: false,
      ast: true, // expressions are interpreted: the page's policy forbids compiling them
      config,
      tooltip: { theme: "page" },
    });
    poise.views.push(view);
    for (const name in poise.signals) poise.tell(view, name, poise.signals[name]);
    if (!("at" in view.getState({ signals: (name) => name === "at" }).signals)) continue;
    view.addEventListener("pointermove", (_, item) => {
      point(item?.datum?.at ?? item?.datum?.iteration ?? -1);
    });
    view.addEventListener("click", (_, item) => {
      if (item?.datum?.iteration) poise.choose(item.datum.iteration);
    });
    chart.addEventListener("pointerleave", () => point(-1));
  }
})();

// The section in view is marked in the list of sections.
{
  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  const watch = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const link of links.values()) link.removeAttribute("aria-current");
        links.get(entry.target.id)?.setAttribute("aria-current", "true");
      }
    },
    { rootMargin: "-20% 0px -70% 0px" },
  );
  for (const section of document.querySelectorAll("section")) watch.observe(section);
}
