// Small charts: lines or columns over time, with a reading for pointer and arrow keys.
import { h, svg, swap } from "./dom.js";

const [W, H, LEFT, RIGHT, TOP, BOTTOM] = [640, 180, 4, 4, 6, 2];

/** Round steps for an axis from 0 to `top`. */
function ticks(top) {
  if (!(top > 0)) return [0, 1];
  const rough = top / 3;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * size).find((one) => one >= rough);
  const made = [];
  for (let at = 0; at < top + step * 0.999; at += step) made.push(at);
  return made;
}

/**
 * A chart with its legend and a line that reads it out.
 * series: [{name, look, values, kind: "line" | "area" | "column"}]; labels: one a value; format: of a value.
 * gap: {upper, lower}: names of the series between which the area is filled.
 */
export function chart(title, { series, labels, format, between }) {
  const count = labels.length;
  const values = series.flatMap((one) => one.values).filter((one) => one !== null && one !== undefined);
  const steps = ticks(Math.max(...values, 0));
  const top = steps.at(-1);
  const columns = series.some((one) => one.kind === "column");
  const x = (n) => (columns ? LEFT + ((n + 0.5) * (W - LEFT - RIGHT)) / count : LEFT + (count > 1 ? (n * (W - LEFT - RIGHT)) / (count - 1) : (W - LEFT - RIGHT) / 2));
  const y = (value) => TOP + (1 - value / top) * (H - TOP - BOTTOM);
  const drawing = svg("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", class: "plot", "aria-hidden": "true" },
    steps.map((one) => svg("line", { x1: LEFT, x2: W - RIGHT, y1: y(one), y2: y(one), class: one ? "grid" : "axis" })),
    between && area(series, between, x, y),
    series.map((one) => (one.kind === "column" ? column(one, series, count, x, y) : path(one, x, y))));
  const mark = svg("line", { y1: TOP, y2: H - BOTTOM, x1: 0, x2: 0, class: "mark", visibility: "hidden" });
  drawing.append(mark);
  const axis = h("div", { class: "scale", "aria-hidden": "true" }, steps.map((one) => h("span", { vars: { "--at": `${((100 * y(one)) / H).toFixed(2)}%` } }, short(format(one)))));
  const reading = h("p", { class: "reading", "aria-live": "polite" });
  const last = [...series.map((one) => `${one.name} ${format(one.values.at(-1))}`)].join(", ");
  const field = h("div", { class: "plot-area" }, drawing);
  const plot = h("div", { class: "plot-box", tabindex: "0", role: "img", "aria-label": `${title}: ${count} values; the last: ${last}` }, axis, field);
  read(plot, field, reading, mark, { series, labels, format, x, count });
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("span", { class: "chart-title" }, title), h("span", { class: "legend" }, series.map((one) => h("span", {}, h("i", { class: `swatch ${one.look}` }), one.name)))),
    plot, h("div", { class: "ends" }, h("span", { "aria-hidden": "true" }, labels[0]), reading, h("span", { "aria-hidden": "true" }, count > 1 ? labels.at(-1) : "")));
}

/** $0.500 on an axis is $0.5. */
function short(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function path(one, x, y) {
  let drawn = "";
  let pen = "M";
  one.values.forEach((value, n) => {
    if (value === null || value === undefined) {
      pen = "M";
      return;
    }
    drawn += `${pen}${x(n).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  });
  const lone = one.values.length === 1 && one.values[0] !== null;
  return svg("path", { d: lone ? `${drawn}h0.01` : drawn, class: `line ${one.look}${lone ? " lone" : ""}` });
}

function area(series, [upper, lower], x, y) {
  const [high, low] = [upper, lower].map((name) => series.find((one) => one.name === name).values.map((one) => one || 0));
  const there = high.map((value, n) => `${n ? "L" : "M"}${x(n).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const back = low.map((value, n) => `L${x(n).toFixed(1)} ${y(value).toFixed(1)}`).reverse().join("");
  return svg("path", { d: `${there}${back}Z`, class: "between" });
}

function column(one, series, count, x, y) {
  const all = series.filter((each) => each.kind === "column");
  const room = Math.min(28, ((W - LEFT - RIGHT) / count) * 0.72);
  const width = Math.max(0.8, room / all.length);
  const shift = all.indexOf(one) * width - room / 2;
  return svg("g", { class: `columns-mark ${one.look}` }, one.values.map((value, n) =>
    value ? svg("rect", { x: x(n) + shift, width: Math.max(width - 0.6, 0.6), y: y(value), height: Math.max(0, y(0) - y(value)) }) : null));
}

function read(plot, field, reading, mark, { series, labels, format, x, count }) {
  let at = count - 1;
  const show = (n) => {
    at = Math.max(0, Math.min(count - 1, n));
    for (const end of ["x1", "x2"]) mark.setAttribute(end, x(at));
    mark.setAttribute("visibility", "visible");
    swap(reading, h("b", {}, labels[at]), series.map((one) => h("span", {}, `${one.name} ${format(one.values[at])}`)));
  };
  const hide = () => {
    mark.setAttribute("visibility", "hidden");
    swap(reading);
  };
  plot.addEventListener("pointermove", (event) => {
    const box = field.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width) * W;
    let best = 0;
    for (let n = 1; n < count; n += 1) if (Math.abs(x(n) - share) < Math.abs(x(best) - share)) best = n;
    show(best);
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -count, End: count }[event.key];
    if (!step) return;
    event.preventDefault();
    show(mark.getAttribute("visibility") === "visible" ? at + step : at);
  });
}

/** Running sums. */
export function running(values) {
  let sum = 0;
  return values.map((one) => (sum += one || 0));
}
