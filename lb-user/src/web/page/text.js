// Numbers, times and names as they are shown.

// Controls (C0, DEL, C1), separators of lines, and marks that change the direction of what is behind them: those of
// lb-user/src/system/escape.rs, in the same form.
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

// A text without characters that end a line, or change the order of what is shown.
export function escaped(text) {
  const code = (character) => SHORT[character] ?? `\\u{${character.charCodeAt(0).toString(16)}}`;
  return String(text).replace(UNSAFE, code);
}

// What stands for a value that is not known.
export const NONE = "–";

const isNone = (value) => value === null || value === undefined;

// Three digits and a prefix of 1000: `1.23M`.
function scaled(value, prefixes, separator) {
  let scale = 0;
  let rest = Math.abs(value);
  while (rest >= 999.5 && scale < prefixes.length) {
    rest /= 1000;
    scale += 1;
  }
  const digits = rest >= 99.5 || (scale === 0 && Number.isInteger(rest)) ? 0 : 1;
  const number = (value < 0 ? -rest : rest).toFixed(digits);
  return scale === 0 ? number + separator : `${number}${separator}${prefixes[scale - 1]}`;
}

// Made once: to make one takes longer than to use it.
const EXACT = new Intl.NumberFormat("en-US", { maximumFractionDigits: 6 });
const PREFIXES = ["k", "M", "G", "T", "P", "E"];

// A number with every digit, in groups of three.
export function exact(value) {
  if (isNone(value)) return "";
  return EXACT.format(value);
}

// A count: `1.2k`.
export function count(value) {
  return isNone(value) ? NONE : scaled(value, PREFIXES, "");
}

// What comes a second: `1.2k/s`.
export function rate(value) {
  if (isNone(value)) return NONE;
  return value > 0 && value < 0.05 ? "<0.1/s" : `${scaled(value, PREFIXES, "")}/s`;
}

// Bits a second: `3.4 Gbit/s`.
export function bits(value) {
  return isNone(value) ? NONE : `${scaled(Math.round(value), PREFIXES, " ")}bit/s`;
}

// A percentage: `33.4 %`.
export function percent(value) {
  return isNone(value) ? NONE : `${Number(value.toFixed(1))} %`;
}

// A time of seconds: `3.2 ms`, `12s`, `2h 5m`.
export function duration(seconds) {
  if (isNone(seconds)) return NONE;
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${Number((seconds * 1e3).toFixed(seconds < 0.1 ? 1 : 0))} ms`;
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${whole % 60}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${Math.floor((whole % 3600) / 60)}m`;
  return `${Math.floor(whole / 86400)}d ${Math.floor((whole % 86400) / 3600)}h`;
}

// How long ago: `12s ago`.
export function ago(seconds) {
  if (isNone(seconds)) return NONE;
  return seconds < 1 ? "now" : `${duration(seconds)} ago`;
}
