// Load by layer and expert, as a picture that can be read with the mouse, the arrow keys, or as a table.

import { h, put, say } from "./dom.js";
import { count, ratio } from "./words.js";

// Light to dark on light, dark to light on dark: the order survives every kind of colour blindness.
const LIGHT = ["#eef3f8", "#bcd7ea", "#69a9d3", "#226fa9", "#0b3564"];
const DARK = ["#16202b", "#1d4a6c", "#2886ad", "#79cfc2", "#fff2ae"];
const BARS = 84;
/** Busiest expert over the mean above which a layer is worth a look. */
export const HOT = 8;
const LEFT = 30;

function isDark() {
  return getComputedStyle(document.documentElement).colorScheme.includes("dark");
}

function ramp() {
  const stops = (isDark() ? DARK : LIGHT).map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return (share) => {
    const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    return `rgb(${stops[low].map((from, channel) => Math.round(from + (stops[low + 1][channel] - from) * (at - low))).join()})`;
  };
}

/** Cells `{layer, expert, tokens}` as a grid: layers ascending, experts from 0. */
export function grid(cells) {
  const layers = [...new Set(cells.map((cell) => cell.layer))].sort((a, b) => a - b);
  const experts = 1 + cells.reduce((most, cell) => Math.max(most, cell.expert), 0);
  const rows = new Map(layers.map((layer) => [layer, new Float64Array(experts)]));
  for (const { layer, expert, tokens } of cells) rows.get(layer)[expert] += Number(tokens);
  return layers.map((layer) => {
    const tokens = rows.get(layer);
    const sum = tokens.reduce((all, one) => all + one, 0);
    const top = tokens.reduce((best, one, expert) => (one > tokens[best] ? expert : best), 0);
    const mean = sum / experts;
    return { layer, tokens, sum, mean, top, imbalance: mean ? tokens[top] / mean : 0, dead: tokens.filter((one) => !one).length };
  });
}

export class Heatmap {
  constructor() {
    this.rows = [];
    this.cursor = null;
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": "Load by layer and expert; arrow keys read it",
      onmousemove: (event) => this.point(event), onmouseleave: () => this.hide(), onclick: (event) => this.point(event),
      onkeydown: (event) => this.key(event), onblur: () => this.hide() });
    this.tip = h("div.tip", { hidden: true, role: "presentation" });
    this.scale = h("div.scale");
    this.element = h("div", {}, h("div.map", {}, this.canvas), this.scale, this.tip);
    this.resized = new ResizeObserver(() => this.paint());
    this.resized.observe(this.element);
  }

  show(rows) {
    this.rows = rows;
    this.paint();
  }

  paint() {
    const width = this.element.clientWidth;
    if (!this.rows.length || !width) return;
    const experts = this.rows[0].tokens.length;
    const cell = Math.max(3, Math.floor((width - LEFT - BARS - 6) / experts));
    const tall = Math.min(22, Math.max(5, Math.floor(430 / this.rows.length)));
    this.cell = { width: cell, height: tall, experts };
    const whole = { width: LEFT + cell * experts + BARS + 6, height: tall * this.rows.length + 18 };
    const dots = devicePixelRatio || 1;
    this.canvas.width = whole.width * dots;
    this.canvas.height = whole.height * dots;
    this.canvas.style.width = `${whole.width}px`;
    this.canvas.style.height = `${whole.height}px`;
    const draw = this.canvas.getContext("2d");
    draw.scale(dots, dots);
    const style = getComputedStyle(document.documentElement);
    const [soft, ink, warn] = ["--soft", "--ink", "--warn"].map((name) => style.getPropertyValue(name));
    const colour = ramp();
    const most = Math.max(2, ...this.rows.map((row) => row.imbalance));
    const gap = cell > 5 ? 1 : 0;
    draw.font = "10.5px system-ui";
    draw.textBaseline = "middle";
    const every = Math.ceil(13 / tall);
    this.rows.forEach((row, index) => {
      const top = index * tall;
      if (index % every === 0) {
        draw.fillStyle = soft;
        draw.textAlign = "right";
        draw.fillText(row.layer, LEFT - 6, top + tall / 2);
      }
      row.tokens.forEach((tokens, expert) => {
        const times = row.mean ? tokens / row.mean : 0;
        draw.fillStyle = tokens ? colour(0.06 + 0.94 * Math.sqrt(times / most)) : "transparent";
        draw.fillRect(LEFT + expert * cell, top, cell - gap, tall - (tall > 6 ? 1 : 0));
      });
      const left = LEFT + cell * experts + 6;
      draw.fillStyle = row.imbalance > HOT ? warn : soft;
      draw.globalAlpha = 0.75;
      draw.fillRect(left, top + tall * 0.18, Math.max(1, ((BARS - 34) * row.imbalance) / most), tall * 0.58);
      draw.globalAlpha = 1;
      if (index % every === 0) {
        draw.textAlign = "left";
        draw.fillText(row.imbalance.toFixed(1), left + ((BARS - 34) * row.imbalance) / most + 4, top + tall / 2);
      }
    });
    draw.fillStyle = soft;
    draw.textBaseline = "alphabetic";
    draw.textAlign = "left";
    const bottom = tall * this.rows.length + 13;
    draw.fillText("expert 0", LEFT, bottom);
    draw.textAlign = "right";
    draw.fillText(String(experts - 1), LEFT + cell * experts - 1, bottom);
    if (this.cursor) {
      draw.strokeStyle = ink;
      draw.lineWidth = 2;
      draw.strokeRect(LEFT + this.cursor.expert * cell - 1, this.cursor.row * tall - 1, cell + 1, tall + 1);
    }
    const steps = Array.from({ length: 9 }, (_, step) => `${colour(0.06 + 0.94 * Math.sqrt(step / 8))} ${(step * 100) / 8}%`);
    put(this.scale, h("span", {}, "unused"), h("i", { style: { background: `linear-gradient(90deg, ${steps.join()})` } }),
      h("span", {}, `${ratio(most)} the layer's mean`), h("span", {}, "· bars: busiest expert over the mean, by layer"));
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const expert = Math.floor((event.clientX - box.left - LEFT) / this.cell.width);
    const row = Math.floor((event.clientY - box.top) / this.cell.height);
    return this.rows[row] && expert >= 0 ? { row, expert: Math.min(expert, this.cell.experts - 1) } : null;
  }

  point(event) {
    const at = this.cell && this.at(event);
    if (at) this.read(at, event.clientX, event.clientY);
    else this.hide();
  }

  key(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") return this.hide();
    if (!step || !this.rows.length) return;
    event.preventDefault();
    const from = this.cursor ?? { row: 0, expert: -step[1] };
    const within = (value, end) => Math.min(Math.max(value, 0), end - 1);
    const at = { row: within(from.row + step[0], this.rows.length), expert: within(from.expert + step[1], this.cell.experts) };
    const box = this.canvas.getBoundingClientRect();
    this.read(at, box.left + LEFT + (at.expert + 1) * this.cell.width, box.top + (at.row + 1) * this.cell.height);
    say(this.tip.textContent);
  }

  read(at, x, y) {
    this.cursor = at;
    const row = this.rows[at.row];
    const tokens = row.tokens[at.expert];
    this.tip.textContent = `layer ${row.layer}, expert ${at.expert}: ${count(tokens)} tokens, ${row.mean ? ratio(tokens / row.mean) : "0×"} the mean`;
    this.tip.hidden = false;
    this.tip.style.left = `${Math.min(x + 14, innerWidth - 270)}px`;
    this.tip.style.top = `${Math.min(y + 14, innerHeight - 60)}px`;
    this.paint();
  }

  hide() {
    this.tip.hidden = true;
    if (this.cursor) {
      this.cursor = null;
      this.paint();
    }
  }
}
