// What the rates of networks and services were in the last minutes, and the line that shows it.

import { drawing } from "./dom.js";

// Overviews that a line shows.
export const PLACES = 60;
const WIDTH = 90;
const HEIGHT = 18;

// Values of one object, the oldest first.
class Series {
  #values = new Float64Array(PLACES);
  #length = 0;

  push(value) {
    if (this.#length === PLACES) this.#values.copyWithin(0, 1);
    else this.#length += 1;
    this.#values[this.#length - 1] = value;
  }

  get max() {
    let max = 0;
    for (let at = 0; at < this.#length; at += 1) max = Math.max(max, this.#values[at]);
    return max;
  }

  // Points of a line from the right edge to the left.
  points() {
    const max = this.max || 1;
    const step = WIDTH / (PLACES - 1);
    let points = "";
    for (let at = 0; at < this.#length; at += 1) {
      const x = WIDTH - (this.#length - 1 - at) * step;
      const y = HEIGHT - 1 - (this.#values[at] / max) * (HEIGHT - 2);
      points += `${x.toFixed(1)},${y.toFixed(1)} `;
    }
    return points.trimEnd();
  }
}

// Series by name; those of objects that are gone are forgotten.
export class History {
  #networks = new Map();
  #services = new Map();

  // Adds the rates of an overview.
  push(rates) {
    follow(this.#networks, rates.networks);
    follow(this.#services, rates.services);
  }

  // The series of an object, or nothing before its first rate: `flows` a second, and `bits`.
  network(name) {
    return this.#networks.get(name);
  }

  service(name) {
    return this.#services.get(name);
  }
}

function follow(all, named) {
  for (const [name, rate] of Object.entries(named)) {
    let one = all.get(name);
    if (one === undefined) all.set(name, (one = { flows: new Series(), bits: new Series() }));
    one.flows.push(rate.flows);
    one.bits.push(8 * (rate.bytes_request + rate.bytes_reply));
  }
  for (const name of all.keys()) {
    if (!Object.hasOwn(named, name)) all.delete(name);
  }
}

// A line of a series, to be put into a cell.
export class Line {
  #line = drawing("polyline", { class: "spark-line", points: "" });
  #last = "";

  constructor() {
    const box = `0 0 ${WIDTH} ${HEIGHT}`;
    const image = { class: "spark", viewBox: box, preserveAspectRatio: "none", role: "img" };
    image["aria-label"] = "no rates yet";
    this.image = drawing("svg", image, this.#line);
  }

  // Draws a series; `format` is how its highest value is shown.
  update(series, format) {
    const points = series?.points() ?? "";
    if (points === this.#last) return;
    this.#last = points;
    this.#line.setAttribute("points", points);
    this.image.setAttribute("aria-label", `the last ${PLACES} overviews, at most ${format(series?.max)}`);
  }
}
