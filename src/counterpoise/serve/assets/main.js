// The page of `poise serve`: one shell, a view per address, updates by server-sent events.
import { overlaid, parse, to } from "./address.js";
import { empty, h, visible } from "./elements.js";
import { help, listen } from "./keyboard.js";
import { follow } from "./live.js";
import { Problem, load } from "./load.js";
import * as audit from "./view_audit.js";
import * as diff from "./view_diff.js";
import * as iteration from "./view_iteration.js";
import * as overlay from "./view_overlay.js";
import * as prompt from "./view_prompt.js";
import * as prompts from "./view_prompts.js";
import * as rollout from "./view_rollout.js";
import * as rollouts from "./view_rollouts.js";
import * as run from "./view_run.js";
import * as runs from "./view_runs.js";
import * as trace from "./view_trace.js";
import * as types from "./view_types.js";

// A view has `load(address, signal)`, `trail(address)`, `key?(address)`, `saved?(address)` (the address of
// its offline page) and `show(root, data, address, page)`, which returns a handle:
//   update(data, address)   called instead of `show` while the key stays the same
//   keys?                   its shortcuts
//   skipsRefresh?()         true while events must not redraw it
//   grew?(event), leave?()  a run changed; another view is about to be shown
const VIEWS = { runs, overlay, run, iteration, rollouts, rollout, prompts, prompt, diff, trace, types, audit };
const find = (name) => document.querySelector(name);
const root = find("#view");
let shown = { address: null, view: null, key: null, handle: null };
let loading = null;

// -- going somewhere -------------------------------------------------------------------------

// options: replace (no new entry in the history), keep (the scroll position stays).
export function go(place, { replace = false, keep = false } = {}) {
  const url = new URL(place, location.href);
  if (url.origin !== location.origin) return;
  if (replace) history.replaceState(history.state, "", url);
  else {
    history.replaceState({ ...history.state, top: scrollY }, "");
    history.pushState({ top: 0 }, "", url);
  }
  show({ keep });
}

async function show({ keep = false, top = null, quiet = false } = {}) {
  loading?.abort();
  const aborter = new AbortController();
  loading = aborter;
  const address = parse(new URL(location.href));
  const view = VIEWS[address.view];
  if (!quiet) document.body.classList.add("loading");
  if (!shown.address) head(view, address, {}); // the first view of the page
  try {
    if (!view) throw new Problem(404, "No view has this address. The list of runs is one click away, at the top left.");
    const data = await view.load(address, aborter.signal);
    if (aborter.signal.aborted) return;
    const key = `${address.view} ${view.key?.(address) ?? address.path}`;
    if (shown.handle && shown.key === key) {
      shown.address = address;
      shown.handle.update(data, address);
      head(view, address, data);
    } else {
      shown.handle?.leave?.();
      head(view, address, data);
      root.replaceChildren();
      root.className = `view-${address.view}`;
      shown = { address, view, key, handle: null };
      shown.handle = view.show(root, data, address, page);
      if (!keep) {
        scrollTo(0, top ?? 0);
        if (document.activeElement === document.body || !document.activeElement?.isConnected) root.focus({ preventScroll: true });
      }
    }
  } catch (fault) {
    if (fault.name === "AbortError") return;
    if (!(fault instanceof Problem)) console.error(fault);
    refuse(fault, address, view, quiet);
  } finally {
    if (loading === aborter) document.body.classList.remove("loading");
  }
}

// What went wrong, and what to do. A view that was there stays there while the server is away.
function refuse(fault, address, view, quiet) {
  const text = fault instanceof Problem ? fault.message : `This view could not be drawn: ${fault.message}`;
  if (quiet && shown.handle && fault.status === 0) return;
  shown.handle?.leave?.();
  shown = { address, view: null, key: null, handle: null };
  head(view, address, {});
  root.className = "view-problem";
  find(".save").hidden = true;
  const again = h("button", { class: "button", type: "button", click: () => show() }, "Try again");
  root.replaceChildren(empty(
    fault.status === 404 ? "Not there" : fault.status === 0 ? "No connection" : "This did not work",
    visible(text), h("p", {}, again, " ", h("a", { class: "button", href: "/" }, "All runs"))));
}

// -- the frame around a view -----------------------------------------------------------------

const TABS = [
  ["Overview", (name) => to.run(name), ["run", "iteration"]],
  ["Rollouts", (name) => to.rollouts(name), ["rollouts", "rollout", "diff"]],
  ["Prompts", (name) => to.prompts(name), ["prompts", "prompt"]],
  ["Token types", (name) => to.types(name), ["types"]],
  ["Held-out", (name) => to.trace(name), ["trace"]],
  ["Audit", (name) => to.audit(name), ["audit"]],
];

const SAVED = { rollouts: "The table as it is filtered now", audit: "The audit of this run" };

function head(view, address, data) {
  const steps = view?.trail?.(address, data) ?? [];
  document.title = [...steps.map(([text]) => visible(text)).reverse(), "Counterpoise"].join(" · ");
  const all = [["Runs", "/"], ...steps];
  find(".trail ol").replaceChildren(...all.map(([text, place], k) => {
    const last = k === all.length - 1;
    const inner = h("bdi", {}, visible(text));
    return h("li", {}, last ? h("span", { "aria-current": "page", title: visible(text) }, inner) : h("a", { href: place }, inner));
  }));
  const tabs = find(".tabs");
  tabs.hidden = !address.run;
  if (address.run) {
    tabs.replaceChildren(h("ul", {}, TABS.map(([title, place, views]) =>
      h("li", {}, h("a", { href: place(address.run), "aria-current": views.includes(address.view) ? "page" : null }, title)))));
  }
  const save = find(".save");
  const place = view?.saved ? view.saved(address) : address.run ? `${to.run(address.run)}/page` : null;
  save.hidden = !place;
  if (place) {
    save.href = place;
    save.setAttribute("download", "");
    save.title = `${SAVED[address.view] ?? "The report of this run"}, as one page that opens offline`;
  }
}

const page = {
  go,
  say: (text) => { find(".announce").textContent = text; },
  refresh: () => show({ quiet: true }),
};

// -- events ----------------------------------------------------------------------------------

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.hasAttribute("download") || link.target || link.origin !== location.origin || link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  go(link.href);
});
addEventListener("popstate", (event) => show({ top: event.state?.top ?? 0 }));
history.scrollRestoration = "manual";

const here = () => shown.address?.run;
const everywhere = [
  { keys: ["?"], does: "this help", act: () => openHelp() },
  { keys: ["g r"], does: "all runs", act: () => go("/") },
  { keys: ["g o"], does: "overview of the run", act: () => here() && go(to.run(here())) },
  { keys: ["g l"], does: "rollouts of the run", act: () => here() && go(to.rollouts(here())) },
  { keys: ["g p"], does: "prompts of the run", act: () => here() && go(to.prompts(here())) },
  { keys: ["g h"], does: "held-out answers of the run", act: () => here() && go(to.trace(here())) },
  { keys: ["g t"], does: "token types of the run", act: () => here() && go(to.types(here())) },
  { keys: ["g a"], does: "audit of the run", act: () => here() && go(to.audit(here())) },
  { keys: ["s"], does: "save as one page", act: () => !find(".save").hidden && find(".save").click() },
];
const shortcuts = () => [...(shown.handle?.keys ?? []), ...everywhere];
const openHelp = () => help(find("dialog.help"), [{ title: "In this view", shortcuts: (shown.handle?.keys ?? []).filter((one) => one.does) }, { title: "Everywhere", shortcuts: everywhere }]);
listen(shortcuts);
find(".ask").addEventListener("click", openHelp);

// A burst of events is one refresh; a hidden page refreshes when it is looked at again.
let waiting = null;
let stale = false;
function refreshSoon() {
  if (document.hidden) stale = true;
  else waiting ??= setTimeout(() => {
    waiting = null;
    if (shown.handle && !shown.handle.skipsRefresh?.()) show({ quiet: true, keep: true });
    else if (!shown.handle) show({ quiet: true });
  }, 250);
}
document.addEventListener("visibilitychange", () => {
  if (document.hidden || !stale) return;
  stale = false;
  refreshSoon();
});
let lost = false;
follow({
  grew(event) {
    shown.handle?.grew?.(event);
    const { view, query } = shown.address ?? {};
    const names = view === "overlay" ? overlaid(query) : here() ? [here()] : null; // null: a view of all runs
    if (!names || names.includes(event.run)) refreshSoon();
  },
  state(word) {
    find(".live").dataset.state = word;
    find(".live span").textContent = { live: "live", refused: "not live" }[word] ?? "connecting";
    find(".live").title = word === "refused" ? "Too many pages follow this server: reload to see what is new" : "";
    if (word === "lost") lost = true;
    else if (lost) {
      lost = false;
      refreshSoon(); // what happened in the meantime
    }
  },
});
show({ top: history.state?.top ?? 0 });
