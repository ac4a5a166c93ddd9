// What is this: one line for every word of the page. Columns of metrics.jsonl come from the server.
import { h } from "./elements.js";

export const TERMS = {
  iteration: "One round: sample rollouts, score them, update the policy.",
  rollout: "One response that the policy sampled for a prompt.",
  group: "The rollouts of one prompt in one iteration.",
  reward: "What the verifier gave the response.",
  advantage: "How much better the rollout was than its group: above 0 its tokens are pushed up, below 0 down.",
  length: "Tokens of the response.",
  "optimizer step": "Rollouts of one column of the mosaic share one gradient.",
  split: "A group whose rollouts lie in several optimizer steps: what they share can no longer cancel.",
  waited: "Sampled in an earlier iteration and kept in the buffer until both signs were there.",
  "cut off": "The response reached the largest number of tokens and was cut.",
  "no spread": "All rewards of the group are equal, so that it teaches nothing.",
  "dropped: no_spread": "Dynamic sampling left the group out because its rewards are equal.",
  "dropped: no_signal": "Reward balance left it out because its advantage is 0.",
  "dropped: surplus": "Reward balance left it out because there were too many of its sign.",
  "dropped: aged": "Reward balance left it out because it had waited too long.",
  "verifier timeout": "The comparison with the reference answer hung and was stopped.",
  displacement: "How the optimizer step changed the token's log-probability.",
  push: "What one token of the step did to the log-probability of another, through the output layer, to first order.",
  entropy: "How undecided the policy was at the token, in nats.",
  ratio: "Probability under the policy that is trained, divided by that under the policy that sampled.",
  "sampler mismatch": "|log-probability by the sampler − log-probability by the trainer| of the same token.",
  credit: "The share of the advantage that a method gave the token.",
  cancellation: "1 − net push / gross push: 1 where the pushes of right and wrong rollouts cancel.",
  "token type": "All occurrences of one vocabulary entry in an update.",
  alarm: "A finding of the audit beyond its threshold, by the careful end of its interval: repair it first.",
  warning: "A finding of the audit beyond a threshold, but not beyond doubt.",
  note: "A finding of the audit that is no fault by itself, or a consequence of another one.",
  success: "Share of rollouts with a reward above 0.",
  "held-out success": "Success on prompts that are not trained on, with a 95 % interval.",
};

// The line of the word under the pointer or the focus: one box for the page, kept inside the window.
const box = h("div", { class: "what-line", "aria-hidden": "true", hidden: true });
function explain(event) {
  const word = event.target.closest?.(".what");
  box.hidden = !word;
  if (!word) return;
  if (!box.isConnected) document.body.append(box);
  box.textContent = word.querySelector(".unseen").textContent;
  const at = word.getBoundingClientRect();
  const below = at.bottom + 8 + box.offsetHeight < innerHeight;
  box.style.left = `${Math.max(8, Math.min(at.left, document.documentElement.clientWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${below ? at.bottom + 6 : at.top - box.offsetHeight - 6}px`;
}
for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, explain);
for (const kind of ["scroll", "focusout", "keydown"]) document.addEventListener(kind, () => { box.hidden = true; }, { passive: true });

// A word with its line, which appears on hover and focus and is read out.
let last = 0;
export function term(word, shown = word) {
  const line = TERMS[word];
  if (!line) return shown;
  const id = `what-${++last}`;
  return h("span", { class: "what", tabindex: 0, "aria-describedby": id }, shown, h("span", { class: "unseen", id, hidden: true }, line));
}
