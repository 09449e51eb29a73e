// The live page: parts that have changed come as events and take the place of those that are there.
"use strict";

const FRESH_MS = 10_000; // two events are missing: what is shown says nothing of the present any more
const AGAIN_MS = 3_000;
const PLOT_EVERY_MS = { hour: 5_000, day: 60_000, week: 300_000 };

const live = document.getElementById("live");
const silent = document.getElementById("silent");
let heard = performance.now();
const tab = document.querySelector(".nav [aria-current]");
if (tab) tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.clientWidth / 3;

function element(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
}

// A part stays as it is while somebody writes in it or has marked text in it.
function inUse(part) {
  const selected = document.getSelection();
  const marked = selected && !selected.isCollapsed && part.contains(selected.anchorNode);
  const focus = document.activeElement;
  return marked || (focus && focus.matches("input") && part.contains(focus));
}

function replace(old, html) {
  if (inUse(old)) return;
  const focus = document.activeElement;
  const had = old.contains(focus) && (focus.dataset.copy || focus.getAttribute("href"));
  const fresh = element(html);
  const plots = old.querySelector(".charts");
  if (plots && fresh.querySelector(".charts")) {
    fresh.querySelector(".charts").replaceWith(plots);
    fresh.querySelector(".spans").replaceWith(old.querySelector(".spans"));
  }
  old.replaceWith(fresh);
  if (had) {
    const again = [...fresh.querySelectorAll("a, button")];
    const same = again.find((each) => (each.dataset.copy || each.getAttribute("href")) === had);
    if (same) same.focus();
  }
}

function show(event) {
  const { at, about, order, parts } = JSON.parse(event.data);
  const main = document.getElementById("main");
  heard = performance.now();
  document.body.classList.remove("silent");
  silent.hidden = true;
  for (const [id, html] of Object.entries(parts)) {
    const old = document.getElementById(id);
    if (old) replace(old, html);
    else main.append(element(html));
  }
  for (const part of [...main.children]) if (!order.includes(part.id)) part.remove();
  if ([...main.children].some((part, index) => part.id !== order[index]))
    main.append(...order.map((id) => document.getElementById(id)));
  live.querySelector("time").textContent = new Date(at).toISOString().slice(11, 19);
  document.querySelector(".heading .about").textContent = about;
  mark();
  plotAll();
}

// A tab in the background shows by its title that somebody is needed.
const title = document.title;
function mark() {
  const has = (state) => document.querySelector(`.verdict.is-${state}`);
  const sign = has("fail") ? "✘ " : has("unknown") ? "? " : has("warn") ? "⚠ " : "";
  document.title = sign + title;
}

function listen() {
  const source = new EventSource(location.href);
  source.onmessage = show;
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) return;
    setTimeout(listen, AGAIN_MS);
  };
}

// A broker that is silent is no good news: every green mark becomes unknown.
function listenFor() {
  if (performance.now() - heard < FRESH_MS) return;
  if (silent.hidden) silent.querySelector("time").textContent = live.querySelector("time").textContent;
  document.body.classList.add("silent");
  silent.hidden = false;
  for (const good of document.querySelectorAll("main .ok")) {
    good.classList.replace("ok", "unknown");
    if (good.matches(".mark")) good.textContent = "? unknown";
  }
  for (const part of document.querySelectorAll(".verdict.is-ok")) {
    part.classList.replace("is-ok", "is-unknown");
    part.querySelector(".reason").textContent = "The broker does not answer.";
  }
  mark();
}

// --- plots -------------------------------------------------------------------------------------

const X_STEPS = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400];
const powers = (base, from, to) => Array.from({ length: to - from }, (_, at) => base ** (from + at));
const Y_STEPS = {
  bytes: powers(2, 0, 50),
  s: [...powers(10, -5, 0).flatMap((p) => [p, 2 * p, 5 * p]), 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400],
};
const plotted = new Map();
let span = "hour";

function unit(kind) {
  const cut = (value, digits) => Number(value.toPrecision(digits)).toString();
  const scaled = (value, names, step, last) => {
    let at = 0;
    while (Math.abs(value) >= step && at < names.length - 1) { value /= step; at += 1; }
    return `${cut(value, 3)} ${names[at]}${last}`.trim();
  };
  return (value) => {
    if (value === null || value === undefined) return "–";
    if (kind === "share") return `${cut(value * 100, 3)} %`;
    if (kind === "bytes") return scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024, "");
    if (kind === "s" && value !== 0 && Math.abs(value) < 1) return `${cut(value * 1000, 3)} ms`;
    if (kind === "s" && value >= 120) return `${cut(value / 60, 3)} min`;
    if (kind === "s") return `${cut(value, 3)} s`;
    return scaled(value, ["", "k", "M", "G"], 1000, kind === "per s" ? "/s" : "");
  };
}

async function plot(figure) {
  const series = JSON.parse(figure.dataset.series);
  const names = Object.keys(series);
  const query = new URLSearchParams(names.map((name) => ["series", name]));
  query.set("span", span);
  const answer = await fetch(`/history?${query}`);
  if (!answer.ok || !figure.isConnected) return;
  const { times_ms, peaks } = await answer.json();
  const known = names.filter((name) => peaks[name].some((value) => value !== null));
  const old = plotted.get(figure);
  const data = [times_ms.map((at) => at / 1000), ...known.map((name) => peaks[name])];
  if (old && old.known === known.join() && old.scheme === scheme()) {
    old.chart.setData(data);
    return;
  }
  if (old && old.chart) old.chart.destroy();
  const place = figure.querySelector(".plot");
  place.textContent = known.length ? "" : "nothing yet";
  const chart = known.length ? draw(figure, place, known.map((name) => series[name]), data) : null;
  plotted.set(figure, { chart, known: known.join(), scheme: scheme() });
}

function draw(figure, place, labels, data) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const show = unit(figure.dataset.unit);
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
  const lines = labels.map((label, at) => ({
    label, stroke: colour(`--plot-${(at % 4) + 1}`), width: 1.75, spanGaps: false,
    dash: /promised|budget|estimated/.test(label) ? [5, 4] : undefined,
    value: (_, value) => show(value), points: { show: data[0].length < 3 },
  }));
  const kind = figure.dataset.unit;
  const newest = (chart) => { // while nobody points at a moment, the legend says what is now
    if (chart.cursor.idx === null && chart.data[0].length)
      chart.setLegend({ idxs: chart.data.map((values) => last(values)) });
  };
  return new uPlot({
    hooks: { setData: [newest], ready: [newest], setCursor: [newest] },
    width: place.clientWidth, height: 150,
    series: [{ label: "at", value: (_, at) => (at === null ? "" : moment(at, 1)) }, ...lines],
    cursor: { y: false, drag: { x: false } },
    scales: {
      x: { range: ({ data: [times] }, low, high) => // of one moment, uPlot would show the day after it
        times.length > 1 ? [Math.min(low, high - 60), high] : [times[0] - 60, times[0]] },
      y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] },
    },
    axes: [
      { ...axis, space: 60, incrs: X_STEPS, values: (_, ticks, __, ___, step) => ticks.map((at) => moment(at, step)) },
      { ...axis, size: 62, values: (_, ticks) => ticks.map(show), ...(Y_STEPS[kind] ? { incrs: Y_STEPS[kind] } : {}) },
    ],
  }, data, place);
}

function last(values) {
  for (let at = values.length - 1; at >= 0; at -= 1) if (values[at] !== null) return at;
  return null;
}

// Times are UTC, as everywhere on the page.
function moment(at, step) {
  const text = new Date(at * 1000).toISOString();
  if (step >= 86_400) return text.slice(5, 10);
  return text.slice(11, step >= 60 ? 16 : 19);
}

function scheme() {
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

let plottedAt = -Infinity;
function plotAll(now = false) {
  if (!now && performance.now() - plottedAt < PLOT_EVERY_MS[span]) return;
  plottedAt = performance.now();
  for (const figure of plotted.keys()) if (!figure.isConnected) plotted.delete(figure);
  for (const figure of document.querySelectorAll("figure.chart")) plot(figure).catch(() => {});
}

// --- what one does -----------------------------------------------------------------------------

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch { // not over plain HTTP from another machine: mark it, and have the browser copy
    const code = button.parentElement.querySelector("code");
    document.getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  button.textContent = "copied";
  setTimeout(() => { button.textContent = "copy"; }, 1500);
}

// Sends what was shown, and nothing else; what is refused is said beside the button.
async function act(button) {
  const said = button.parentElement.querySelector("output");
  button.disabled = true;
  said.textContent = "…";
  try {
    const answer = await fetch(button.dataset.post, {
      method: "POST", headers: { "content-type": "application/json" }, body: button.dataset.body,
    });
    if (answer.ok) { location.assign(button.dataset.then); return; }
    const { message, hint } = await answer.json();
    said.textContent = [message, hint].filter(Boolean).join(" ");
  } catch {
    said.textContent = "The broker does not answer; look whether it was done.";
  }
  button.disabled = false;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy) copy(button);
  if (button.dataset.post) act(button);
  if (button.id === "help") keys.showModal();
  if (button.dataset.span) {
    span = button.dataset.span;
    for (const each of document.querySelectorAll("[data-span]"))
      each.setAttribute("aria-pressed", String(each.dataset.span === span));
    plotAll(true);
  }
});

const keys = document.getElementById("keys");
keys.addEventListener("click", (event) => { if (event.target === keys) keys.close(); });

// Where one can go from here: names of pipelines and of the rows of tables, and what lines lead to.
const PLACES = "main .pipeline h2 a, main td a, main dd a, main .pager a, main .copy, main .act button";
function step(by) {
  const places = [...document.querySelectorAll(PLACES)];
  const at = places.indexOf(document.activeElement);
  const next = places[at < 0 ? (by > 0 ? 0 : places.length - 1) : at + by];
  if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
}

const KEYS = {
  "/": () => { const find = document.querySelector(".find input"); if (find) { find.focus(); find.select(); } },
  j: () => step(1),
  k: () => step(-1),
  u: () => { const above = [...document.querySelectorAll(".crumbs a")].pop(); if (above) above.click(); },
  c: () => { const first = document.querySelector("#silent:not([hidden]) .copy, main .copy"); if (first) copy(first); },
  "?": () => keys.showModal(),
};
document.addEventListener("keydown", (event) => {
  if (keys.open || event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
  const page = document.querySelectorAll(".nav a")[Number(event.key) - 1];
  if (/^[1-9]$/.test(event.key) && page) page.click();
  else if (Object.hasOwn(KEYS, event.key)) { event.preventDefault(); KEYS[event.key](); }
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plotAll(true));
let resized;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => {
    for (const [figure, { chart }] of plotted)
      if (chart) chart.setSize({ width: figure.querySelector(".plot").clientWidth, height: 150 });
  }, 200);
});
// What cannot be shown now may be later: a pipeline that starts, a catalog that comes back.
async function again() {
  const answer = await fetch(location.href, { headers: { accept: "application/json" } });
  if (answer.ok) location.reload();
}

if (!live.dataset.at) setInterval(() => again().catch(() => {}), 2 * AGAIN_MS);
else if (!("still" in live.dataset)) {
  mark();
  listen();
  setInterval(listenFor, 1000);
  plotAll(true);
}
