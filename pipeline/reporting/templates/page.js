"use strict";

// Tables: a button in each header sorts up, then down, then back to the table's own order.
const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

const EMPTY = ["", "-", "\u2013", "\u2014"];

// A cell's text, unless an attribute says otherwise; null for a cell without a value.
const sortKey = (cell) => {
  if (cell.dataset.number !== undefined) return Number(cell.dataset.number);
  const text = (cell.dataset.text ?? cell.textContent).trim();
  if (EMPTY.includes(text)) return null;
  const number = cell.dataset.text === undefined ? Number(text.replaceAll(",", "").replace("\u2212", "-")) : NaN;
  return Number.isFinite(number) ? number : text;
};

// Numbers before texts; what is missing stands last in both directions.
const compareKeys = (a, b, direction) => {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return direction * (typeof a === "number" ? a - b : collator.compare(a, b));
};

const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const headers = [...table.tHead.rows[0].cells];
  const keys = new Map(original.map((row) => [row, [...row.cells].map(sortKey)]));
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    header.replaceChildren(button);
    header.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const order = NEXT[header.getAttribute("aria-sort")];
      for (const other of headers) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", order);
      const direction = order === "descending" ? -1 : 1;
      const rows = order === "none" ? original : [...original]
        .sort((a, b) => compareKeys(keys.get(a)[column], keys.get(b)[column], direction));
      body.append(...rows);
    });
  });
}

// Filters, above each table with many rows: words of the first column, a menu for each other one of names, limits on numbers.
const MANY_ROWS = 6;
const MOST_NAMES = 40;

const make = (tag, values, ...children) => {
  const element = Object.assign(document.createElement(tag), values);
  element.append(...children);
  return element;
};

const labelled = (text, ...controls) => make("label", {}, make("span", { textContent: text }), ...controls);

for (const table of document.querySelectorAll("table.sortable")) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < MANY_ROWS) continue;
  const keys = rows.map((row) => [...row.cells].map(sortKey));
  const titles = [...table.tHead.rows[0].cells].map((header) => header.textContent);
  const bar = make("div", { className: "filters" });
  const count = make("output", {});
  const tests = [];
  const update = () => {
    rows.forEach((row, place) => { row.hidden = !tests.every((test) => test(row, keys[place])); });
    const shown = rows.filter((row) => !row.hidden).length;
    count.textContent = shown < rows.length ? `${shown} of ${rows.length}` : "";
  };
  const words = make("input", { type: "search", placeholder: "contains" });
  tests.push((row) => row.cells[0].textContent.toLowerCase().includes(words.value.trim().toLowerCase()));
  bar.append(labelled(titles[0], words));
  const numeric = [];
  titles.forEach((title, column) => {
    const names = new Map();
    rows.forEach((row, place) => {
      if (keys[place][column] !== null) names.set(keys[place][column], row.cells[column].textContent.trim());
    });
    if ([...names.keys()].every((key) => typeof key === "number")) {
      if (column && new Set(keys.map((own) => own[column])).size > 1) numeric.push(column);
      return;
    }
    if (!column || names.size < 2 || names.size > MOST_NAMES || names.size === rows.length) return;
    const menu = make("select", {}, new Option(`all ${names.size}`, ""));
    for (const [key, name] of names) menu.add(new Option(name, key));
    tests.push((row, own) => !menu.value || String(own[column]) === menu.value);
    bar.append(labelled(title, menu));
  });
  if (numeric.length) {
    const menu = make("select", { ariaLabel: "column with limits" });
    for (const column of numeric) menu.add(new Option(titles[column], column));
    const [least, most] = ["at least", "at most"].map(
      (text) => make("input", { type: "number", step: "any", placeholder: text, ariaLabel: text }));
    tests.push((row) => {
      if (!least.value && !most.value) return true;
      // As it is shown, which may be in points or percent.
      const number = parseFloat(row.cells[menu.value].textContent.replaceAll(",", "").replace("\u2212", "-"));
      if (Number.isNaN(number)) return false;
      return (!least.value || number >= Number(least.value)) && (!most.value || number <= Number(most.value));
    });
    bar.append(make("div", {}, menu, least, most));
  }
  bar.append(count);
  bar.addEventListener("input", update);
  table.parentElement.before(bar);
}

// What is wider than its box says so, and its edge fades while there is more behind it.
const watch = (box) => {
  const hint = make("p", { className: "hint", textContent: "Wider than the page: scroll sideways \u2192" });
  box.before(hint);
  const mark = () => {
    const hidden = box.scrollWidth - box.clientWidth;
    hint.hidden = hidden < 2;
    box.classList.toggle("more", hidden - box.scrollLeft >= 2);
  };
  box.addEventListener("scroll", mark, { passive: true });
  new ResizeObserver(mark).observe(box);
  mark();
};
for (const box of document.querySelectorAll("main > * > .scroll, figure .scroll")) watch(box);

// Curves of several runs in one figure, read from the tables of the runs below.
const SVG = make("template", { innerHTML: "<svg></svg>" }).content.firstChild.namespaceURI;
const MOST_IN_LEGEND = 16;

const shape = (tag, attributes, ...children) => {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

const curvesOf = (details) => {
  const table = details.querySelector(".progress table");
  if (!table) return {};
  const titles = [...table.tHead.rows[0].cells].map((header) => header.textContent);
  const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map(sortKey));
  const epoch = titles.indexOf("epoch");
  const points = (column) => rows.map((row) => [row[epoch], row[column]])
    .filter((point) => point.every((value) => typeof value === "number"));
  return Object.fromEntries(titles.map((title, column) => [title, points(column)])
    .filter(([title, found]) => title !== "epoch" && found.length > 1));
};

const drawCurves = (box, runs) => {
  const names = (values) => [...new Set(values)];
  const filters = ["row", "task"].map((key) => {
    const found = names(runs.map((run) => run[key]));
    const title = key === "row" ? "Curves of" : "Task";
    const menu = make("select", {}, new Option(`all ${found.length}`, ""), ...found.map((name) => new Option(name, name)));
    return { key, menu, title };
  });
  const measures = names(runs.flatMap((run) => Object.keys(run.curves)));
  const measure = make("select", {}, ...measures.map((name) => new Option(name, name)));
  if (measures.includes("dev")) measure.value = "dev";
  filters[1].menu.selectedIndex = filters[1].menu.options.length > 2 ? 1 : 0;
  const bar = make("div", { className: "filters" },
    ...filters.map(({ title, menu }) => labelled(title, menu)), labelled("Measure", measure));
  const figure = shape("svg", { height: 300, role: "img" });
  const legend = make("p", { className: "legend" });
  const draw = () => {
    const shown = runs.filter((run) => run.curves[measure.value]
      && filters.every(({ key, menu }) => !menu.value || run[key] === menu.value));
    // Lines differ in colour by what the menus leave open.
    const open = filters.find(({ key, menu }) => !menu.value && names(shown.map((run) => run[key])).length > 1);
    const of = (run) => (open ? run[open.key] : run.label);
    const hues = new Map(names(shown.map(of)).map((name, number) => [name, Math.round(210 + number * 137.5) % 360]));
    const points = shown.flatMap((run) => run.curves[measure.value]);
    const [width, height, left, right, top, bottom] = [Math.max(box.clientWidth, 240), 300, 52, 8, 10, 34];
    const range = (values) => [Math.min(...values), Math.max(...values)];
    const scale = ([low, high], from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);
    const [xs, ys] = [0, 1].map((place) => range(points.map((point) => point[place])));
    const x = scale(xs, left + 6, width - right - 6);
    const y = scale(ys, height - bottom - 6, top + 6);
    const text = (value, attributes) => shape("text", attributes, value);
    const lines = shown.map((run) => {
      const path = shape("path", {
        class: "hue", d: `M${run.curves[measure.value].map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("L")}`,
      }, shape("title", {}, run.label));
      path.style.setProperty("--hue", hues.get(of(run)));
      path.addEventListener("click", () => { location.hash = run.hash; openRun(run.hash); });
      return path;
    });
    figure.setAttribute("viewBox", `0 0 ${width} ${height}`);
    figure.setAttribute("aria-label", `${measure.value} by epoch of ${shown.length} runs`);
    figure.replaceChildren(
      shape("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - right}` }),
      ...(points.length ? [
        text(ys[1].toPrecision(3), { x: left - 6, y: top + 10, "text-anchor": "end" }),
        text(ys[0].toPrecision(3), { x: left - 6, y: height - bottom, "text-anchor": "end" }),
        text(xs[0], { x: x(xs[0]), y: height - bottom + 16, "text-anchor": "middle" }),
        text(xs[1], { x: x(xs[1]), y: height - bottom + 16, "text-anchor": "middle" }),
      ] : []),
      text("epoch", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }),
      shape("g", {}, ...lines));
    const entries = [...hues].slice(0, MOST_IN_LEGEND).map(([name, hue]) => {
      const mark = make("span", { className: "hue" });
      mark.style.setProperty("--hue", hue);
      return make("span", {}, mark, name);
    });
    const more = hues.size - entries.length;
    legend.replaceChildren(...entries, ...(more > 0 ? [`and ${more} more`] : []), ...(shown.length ? [] : ["no such run"]));
  };
  bar.addEventListener("input", draw);
  box.append(bar, figure, legend);
  box.hidden = false;
  let drawn = 0;
  new ResizeObserver(() => {
    if (box.clientWidth !== drawn) draw();
    drawn = box.clientWidth;
  }).observe(box);
};

const curved = [...document.querySelectorAll("details[data-row]")].map((details) => ({
  row: details.dataset.row, task: details.dataset.task, hash: `#${details.id}`, curves: curvesOf(details),
  label: details.querySelector("summary span").textContent,
})).filter((run) => Object.keys(run.curves).length);
if (curved.length > 1) drawCurves(document.getElementById("curves"), curved);

// A link opens what it leads to, and a print has everything.
const runElement = (run) => document.getElementById(`run-${run}`);

const openRun = (hash) => {
  const element = document.getElementById(decodeURIComponent(hash.slice(1)));
  for (let part = element; part; part = part.parentElement) if (part instanceof HTMLDetailsElement) part.open = true;
  if (element) element.scrollIntoView();
};
addEventListener("hashchange", () => openRun(location.hash));
openRun(location.hash);
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll(".part")) part.open = true;
});

// A value with small print or several runs shows them on a card; one with a single run leads there at once.
const card = document.getElementById("card");
const runsOf = (value) => value.dataset.runs.split(" ").filter(Boolean);

const fillCard = (detail, runs) => {
  card.replaceChildren();
  if (detail) card.append(Object.assign(document.createElement("p"), { textContent: detail }));
  const list = document.createElement("ul");
  for (const run of runs) {
    const link = document.createElement("a");
    link.href = `#run-${encodeURIComponent(run)}`;
    link.textContent = runElement(run).querySelector("summary span").textContent;
    const item = document.createElement("li");
    item.append(link);
    list.append(item);
  }
  if (runs.length) card.append(list);
};

const placeCard = (value) => {
  const box = value.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - card.offsetWidth - 8);
  card.style.left = `${Math.max(8, left) + scrollX}px`;
  card.style.top = `${box.bottom + 6 + scrollY}px`;
};

const showCard = (value) => {
  fillCard(value.title, runsOf(value));
  card.showPopover();
  placeCard(value);
  card.focus({ preventScroll: true });
};

for (const value of document.querySelectorAll(".value")) {
  if (!card.showPopover || (runsOf(value).length === 1 && !value.title)) continue;
  value.setAttribute("aria-haspopup", "dialog");
  // The card says what the tooltip says, to the keyboard and to fingers too.
  if (value instanceof HTMLAnchorElement === false) {
    value.tabIndex = 0;
    value.setAttribute("role", "button");
  }
  value.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    showCard(value);
  });
  value.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    showCard(value);
  });
}

document.addEventListener("click", (event) => {
  const link = event.target instanceof Element && event.target.closest('a[href^="#"]');
  if (!link || event.defaultPrevented) return;
  if (card.contains(link)) card.hidePopover();
  // Again to where the address already points: no hashchange comes.
  openRun(link.hash);
});
