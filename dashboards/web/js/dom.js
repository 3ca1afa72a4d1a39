// Making elements. Text is only ever set as text: names of requests come from outside.

const SVG = "http://www.w3.org/2000/svg";

/** An element: attributes, listeners (`onclick`), then children (elements, text, arrays, nothing). */
export function h(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  return filled(document.createElement(tag), classes, attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), [], attributes, children);
}

function filled(element, classes, attributes, children) {
  element.classList.add(...classes);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [property, set] of Object.entries(value)) element.style.setProperty(property, set);
    else if (key === "class") element.classList.add(...value.split(" ").filter(Boolean));
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Puts children in place of what was there, and keeps the focus where it was by the element's id. */
export function put(element, ...children) {
  const focused = document.activeElement?.id;
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  if (focused && element.contains(document.getElementById(focused))) document.getElementById(focused).focus();
}

export function table(columns, rows, row) {
  return h("div.scroll", { tabindex: "0", role: "region", "aria-label": "table, scrolls sideways" },
    h("table", {}, h("thead", {}, h("tr", {}, columns.map((column) => {
      const [text, kind] = [].concat(column);
      return h("th", { class: kind, scope: "col" }, text);
    }))), h("tbody", {}, rows.map(row))));
}

/** Tells those who listen to the page. */
export function say(text) {
  document.getElementById("said").textContent = text;
}
