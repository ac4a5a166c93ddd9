// Numbers as text: fixed widths, a real minus sign, no more digits than the reader can use.

const minus = (text) => text.replaceAll("-", "−");

export function number(x, digits = 3) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return minus(x.toLocaleString("en"));
  const size = Math.abs(x);
  if (size < 1e-12) return "0";
  if (size >= 9.995e8) return minus(x.toExponential(1));
  if (size >= 1e6) return minus(`${(x / 1e6).toPrecision(3)}M`);
  if (size >= 1000) return minus(Math.round(x).toLocaleString("en"));
  if (size >= 0.001) return minus(Number(x.toPrecision(digits)).toFixed(Math.max(0, Math.min(4, digits - 1 - Math.floor(Math.log10(size))))));
  return minus(x.toExponential(1));
}

export const signed = (x, digits = 3) => (Number.isFinite(x) && x > 0 ? `+${number(x, digits)}` : number(x, digits));
export const advantage = (x) => (Number.isFinite(x) ? (x > 0 ? "+" : x < 0 ? "−" : "") + Math.abs(x).toFixed(2) : "–");
export const percent = (x, digits = 1) => (Number.isFinite(x) ? `${minus((100 * x).toFixed(digits))} %` : "–");
// A probability: 88.4 %, 0.32 %, < 0.01 %.
export const chance = (x) => (x < 0.0001 ? "< 0.01 %" : percent(x, x < 0.01 ? 2 : 1));
export const count = (x) => (Number.isFinite(x) ? x.toLocaleString("en") : "–");

export function seconds(x) {
  if (!Number.isFinite(x)) return "–";
  if (x < 0.0995) return `${(1000 * x).toFixed(x < 0.00995 ? 1 : 0)} ms`;
  if (x < 99.5) return `${x.toFixed(x < 9.95 ? 2 : 1)} s`;
  const whole = Math.round(x);
  if (x < 5400) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${(x / 3600).toFixed(1)} h`;
}

export function ago(unix, now = Date.now() / 1000) {
  if (!Number.isFinite(unix)) return "–";
  const passed = Math.max(0, now - unix);
  if (passed < 5) return "just now";
  if (passed < 90) return `${Math.round(passed)} s ago`;
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  if (passed < 129600) return `${Math.round(passed / 3600)} h ago`;
  return `${Math.round(passed / 86400)} days ago`;
}

export const plural = (n, noun, several = `${noun}s`) => `${count(n)} ${n === 1 ? noun : several}`;

// A number on an axis whose marks are `step` apart: all of them with the same decimals.
export function tick(x, step) {
  if (x === 0) return "0";
  if (step >= 1e6) return minus(`${x / 1e6}M`);
  if (step >= 1e4) return minus(`${x / 1e3}k`);
  if (step < 1e-4) return minus(x.toExponential(1));
  const text = step.toPrecision(2);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (/[1-9].*[1-9]/.test(text.replace(".", "")) ? 1 : 0));
  return minus(x.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }));
}
number.tick = tick;
percent.tick = (x, step) => `${tick(100 * x, 100 * step)} %`;
seconds.tick = (x, step) => (x === 0 ? "0" : step < 1 ? `${tick(1000 * x, 1000 * step)} ms` : `${tick(x, step)} s`);

// Round numbers that span [low, high]: at most `most` of them.
export function ticks(low, high, most = 3) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= rough * 0.999);
  const marks = [];
  for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + step * 1e-9; x += step) marks.push(Math.abs(x) < step * 1e-9 ? 0 : x);
  return marks.length > 1 || most > 6 ? marks : ticks(low, high, 2 * most); // one mark has no scale
}
