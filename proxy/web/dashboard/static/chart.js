// Charts over time or over requests, drawn by uPlot, with a reading for pointer and arrow keys.
import { h, swap } from "./dom.js";
import { short } from "./format.js";

const { uPlot } = window;
const HEIGHT = 180;
const DAY_S = 86400;
const MINUTE_S = 60;

/**
 * A chart with its legend and a line that reads it out.
 * series: [{name, look, values, kind: "line" | "column"}], null for an unknown value; at: Unix seconds, one a value.
 * inOrder: places are equally far apart, as for requests; else the axis is time. format: of a value.
 * between: names of the two series between which the area is filled. marks: [{n, look, text}] on the last line.
 * counts: all values are whole numbers. open: called with the place that was chosen by a click or by Enter.
 */
export function chart(title, { series, at, format, between, marks = [], inOrder = false, counts = false, open }) {
  const count = at.length;
  const legend = series.map((one) => h("span", {}, h("i", { class: `swatch ${one.look}` }), one.name));
  const looks = [...new Set(marks.map((one) => one.look))];
  const signs = looks.map((look) => h("span", {}, h("i", { class: `swatch round ${look}` }), marks.find((one) => one.look === look).text));
  const reading = h("p", { class: "reading", "aria-live": "polite" });
  const last = series.map((one) => `${one.name} ${format(one.values.at(-1))}`).join(", ");
  const box = h("div", { class: `plot-box${open ? " opens" : ""}`, tabindex: "0", role: "img", "data-focus": `chart-${title}`, "aria-label": `${title}: ${count} values; the last: ${last}` });
  const figure = h("figure", { class: "chart" },
    h("figcaption", {}, h("span", { class: "chart-title" }, title), h("span", { class: "legend" }, legend, signs)), box, reading);
  const when = timeFormat(at);
  const read = (n) => swap(reading, n === null ? null : [h("b", {}, when(at[n], true)),
    series.map((one) => h("span", {}, `${one.name} ${format(one.values[n])}`)), marks.filter((one) => one.n === n).map((one) => h("span", {}, one.text))]);
  draw(box, figure, { series, at, format, between, marks, inOrder, counts, open, count, when, read, legend, signs, looks });
  return figure;
}

/** The colours are the page's: they are read from the legend, again with every drawing. */
function colour(element) {
  return getComputedStyle(element.querySelector(".swatch")).backgroundColor;
}

function faint(text) {
  return text.startsWith("rgb(") ? text.replace("rgb(", "rgba(").replace(")", ", 0.1)") : "transparent";
}

/** Short times of an axis or, in full, of a reading: by how long the whole is. */
function timeFormat(at) {
  const span = at.length ? at.at(-1) - at[0] : 0;
  const exact = span > 0 && span < 5 * MINUTE_S ? { second: "2-digit" } : {};
  const tick = span < 2 * DAY_S ? { hour: "2-digit", minute: "2-digit", ...exact } : { day: "numeric", month: "short" };
  const long = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", ...exact };
  return (seconds, full) => new Date(seconds * 1000).toLocaleString("en-GB", full ? long : tick);
}

function draw(box, figure, chart) {
  let plot = null;
  const again = new AbortController();
  const observer = new ResizeObserver(() => {
    if (!box.isConnected) {
      observer.disconnect();
      again.abort();
      if (plot) plot.destroy();
      return;
    }
    const size = { width: Math.floor(box.clientWidth), height: HEIGHT };
    if (!size.width) return;
    if (plot) plot.setSize(size);
    else plot = new uPlot(options(figure, chart, size), data(chart), box);
  });
  observer.observe(box);
  const redraw = () => plot && plot.redraw(false);
  const theme = new MutationObserver(redraw);
  theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  again.signal.addEventListener("abort", () => theme.disconnect());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw, { signal: again.signal });
  keys(box, chart, () => plot);
}

function data({ series, at, inOrder }) {
  return [inOrder ? at.map((_, n) => n) : at, ...series.map((one) => one.values.map((value) => value ?? null))];
}

function options(figure, chart, size) {
  const { series, at, format, between, inOrder, when, read, legend, open } = chart;
  const columns = series.filter((one) => one.kind === "column");
  const ink = () => getComputedStyle(figure.querySelector(".legend")).color;
  const grid = { stroke: () => getComputedStyle(figure).borderTopColor, width: 1 };
  const axis = { stroke: ink, font: "11px system-ui, sans-serif", ticks: { show: false } };
  const place = (n) => (n >= 0 && Number.isInteger(n) && n < at.length ? when(at[n]) : "");
  const named = (name) => 1 + series.findIndex((one) => one.name === name);
  return {
    ...size,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
    scales: { x: { time: false, range: (_, low, high) => (columns.length || low === high ? wider(at, inOrder, low, high) : [low, high]) }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.05 : 1] } },
    axes: [
      { ...axis, grid: { show: false }, space: 62, size: 30, gap: 9, values: (_, splits) => once(splits.map((one) => (inOrder ? place(one) : when(one)))), ...(inOrder ? { incrs: COUNTS } : at.length === 1 ? { splits: () => at } : { incrs: INCREMENTS.filter((one) => one >= DAY_S || at.at(-1) - at[0] < 2 * DAY_S) }) },
      { ...axis, grid, space: 38, size: 58, incrs: chart.counts || format === short ? COUNTS : STEPS, values: (_, splits) => once(splits.map((one) => brief(format(one)))) },
    ],
    series: [{}, ...series.map((one, n) => line(one, legend[n], columns, at.length))],
    bands: between ? [{ series: between.map(named), fill: () => faint(colour(legend[named(between[1]) - 1])) }] : [],
    hooks: {
      setCursor: [(plot) => read(plot.cursor.idx ?? null)],
      draw: [(plot) => sign(plot, chart)],
      ready: [(plot) => open && plot.over.addEventListener("click", () => plot.cursor.idx !== null && plot.cursor.idx !== undefined && open(plot.cursor.idx))],
    },
    padding: [8, 26, 0, 0],
  };
}

const steps = (least, most) => Array.from({ length: most - least + 1 }, (_, n) => [1, 2, 5].map((one) => Number(`${one}e${least + n}`))).flat();
/** Steps of an axis. Each is written in full: a step of $0.00025 would be rounded to $0.0003. */
const STEPS = steps(-4, 12);
/** Steps of an axis of whole numbers. */
const COUNTS = steps(0, 12);
const INCREMENTS = [60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, DAY_S, 2 * DAY_S, 3 * DAY_S, 4 * DAY_S, 7 * DAY_S, 14 * DAY_S, 30 * DAY_S, 90 * DAY_S, 365 * DAY_S];

/** Half a column more on each side. */
function wider(at, inOrder, low, high) {
  const room = inOrder ? 0.6 : at.length > 1 ? 0.6 * Math.min(...at.slice(1).map((one, n) => one - at[n])) : 1800;
  return [low - room, high + room];
}

/** Where the line has too many points to show them: those between two gaps, which no line reaches. */
function alone(plot, series, shown) {
  if (shown) return null;
  const values = plot.data[series];
  return values.map((one, n) => n).filter((n) => values[n] !== null && (values[n - 1] ?? null) === null && (values[n + 1] ?? null) === null);
}

function line(one, legend, columns, count) {
  const made = { label: one.name, stroke: () => colour(legend), width: 2, points: { show: count < 40 || undefined, filter: alone, size: count === 1 ? 9 : 4, fill: () => colour(legend) } };
  if (one.kind !== "column") return made;
  const side = columns.length > 1 ? [-1, 1][columns.indexOf(one) % 2] : 0;
  return { ...made, fill: made.stroke, width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [columns.length > 1 ? 0.36 : 0.7, 24], align: side }) };
}

/** Round signs on the last line, at the places that are marked. */
function sign(plot, { marks, signs, looks, inOrder, at, series }) {
  const { ctx } = plot;
  const scale = window.devicePixelRatio || 1;
  for (const one of marks) {
    ctx.beginPath();
    ctx.fillStyle = colour(signs[looks.indexOf(one.look)]);
    ctx.arc(plot.valToPos(inOrder ? one.n : at[one.n], "x", true), plot.valToPos(series.at(-1).values[one.n] ?? 0, "y", true), 4.5 * scale, 0, 2 * Math.PI);
    ctx.fill();
  }
}

/** Labels of an axis, each once: figures that round to the same are told apart by their lines. */
function once(labels) {
  return labels.map((one, n) => (one === labels[n - 1] ? "" : one));
}

/** $0.500 on an axis is $0.5. */
function brief(text) {
  return text.includes(".") ? text.replace(/(\.\d*?)0+(?=\D*$)/, "$1").replace(/\.(?=\D*$)/, "") : text;
}

function keys(box, { count, read, inOrder, at, open }, plot) {
  let here = count - 1;
  const show = (n) => {
    here = Math.max(0, Math.min(count - 1, n));
    const drawn = plot();
    if (drawn) drawn.setCursor({ left: drawn.valToPos(inOrder ? here : at[here], "x"), top: 0 });
    read(here);
  };
  box.addEventListener("blur", () => {
    const drawn = plot();
    if (drawn) drawn.setCursor({ left: -10, top: -10 });
    read(null);
  });
  let moved = false;
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && open) open(here);
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -count, End: count }[event.key];
    if (!step) return;
    event.preventDefault();
    show(moved ? here + step : here);
    moved = true;
  });
}

/** Running sums. */
export function running(values) {
  let sum = 0;
  return values.map((one) => (sum += one || 0));
}
