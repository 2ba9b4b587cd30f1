// Elements. Text goes into text nodes and named attributes only, escaped: nothing is ever parsed as HTML.

import { escaped } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

// An element of HTML with attributes and children, which are elements or text.
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, escaped(value));
  }
  for (const child of children) {
    made.append(child instanceof Node ? child : escaped(child));
  }
  return made;
}

// An element of SVG with attributes and children.
export function drawing(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Sets text, where it is another one.
export function setText(node, text) {
  const clean = escaped(text);
  if (node.textContent !== clean) node.textContent = clean;
}

// Sets an attribute where it is another one; null removes it.
export function setAttribute(node, name, value) {
  if (value === null || value === undefined) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
    return;
  }
  const clean = escaped(value);
  if (node.getAttribute(name) !== clean) node.setAttribute(name, clean);
}
