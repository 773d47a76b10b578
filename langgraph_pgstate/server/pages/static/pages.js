// Pages work without this script. It refreshes open pages, and makes them usable by keys.
"use strict";

const main = document.getElementById("main");
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

// Buttons that need the script.
all(".scripted").forEach((button) => { button.hidden = false; });

// Times: "3 min ago" stays true.
const UNITS = [[31536000, "y"], [2592000, "mo"], [86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
let offset = null;

function tell(time, now) {
  const seconds = (now - Date.parse(time)) / 1000, length = Math.abs(seconds);
  if (length < 5) return "now";
  const [size, unit] = UNITS.find(([size]) => length >= size);
  const text = `${Math.floor(length / size)} ${unit}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

function tellTimes() {
  const now = Date.now() - (offset || 0);
  all("time[datetime]").forEach((one) => {
    const text = tell(one.dateTime, now);
    if (one.textContent !== text) one.textContent = text;
  });
}

// The clock of the server counts: the browser's may be wrong.
function learnClock(response) {
  const date = Date.parse(response.headers.get("Date") || "");
  if (!Number.isNaN(date)) offset = Date.now() - date;
}

// Live pages: the part with the id `live`, what has `data-fresh`, and the title are replaced by what the server has now.
const live = document.querySelector("[data-live]");
let isDone = false;

// A notice is about the action just done: no address keeps it.
const notice = document.querySelector(".notice");
if (notice) {
  const address = new URL(location.href);
  address.searchParams.delete("notice");
  history.replaceState(null, "", address);
}

async function refresh() {
  const place = document.getElementById("live");
  const isBusy = document.hidden || document.querySelector("details.act[open]") || !place || place.contains(document.activeElement) && document.activeElement.matches("input, textarea, select");
  if (isBusy || String(getSelection()) || live.getAttribute("aria-pressed") !== "true") return;
  const response = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!response.ok || response.redirected) return;
  learnClock(response);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const found = page.getElementById("live");
  if (!found) return;
  document.title = page.title;
  const fresh = all("[data-fresh]", page);
  all("[data-fresh]").forEach((one, place) => {
    if (fresh[place] && fresh[place].innerHTML !== one.innerHTML) one.replaceChildren(...document.adoptNode(fresh[place]).childNodes);
  });
  // The last spans of what has ended may come after its end: one more time.
  const hasEnded = !page.querySelector("[data-live]");
  isDone = hasEnded && live.hidden;
  live.hidden = hasEnded;
  const opened = all("details[open][id]", place).map((one) => one.id);
  const focused = all("a, button, summary", place).indexOf(document.activeElement);
  if (place.innerHTML === found.innerHTML) return;
  if (notice) notice.remove();
  place.replaceChildren(...document.adoptNode(found).childNodes);
  showCurrent();
  opened.forEach((id) => { const one = document.getElementById(id); if (one) one.open = true; });
  if (focused >= 0) { const one = all("a, button, summary", place)[focused]; if (one) one.focus(); }
  tellTimes();
}

async function keepFresh() {
  try { await refresh(); } catch { /* The server is away; the next time it may not be. */ }
  if (!isDone) setTimeout(keepFresh, 1000 * Number(live.dataset.live));
}

if (live) {
  live.setAttribute("aria-pressed", String(localStorage.getItem("pgstate-live") !== "off"));
  live.addEventListener("click", () => {
    const isOn = live.getAttribute("aria-pressed") !== "true";
    live.setAttribute("aria-pressed", String(isOn));
    localStorage.setItem("pgstate-live", isOn ? "on" : "off");
  });
  setTimeout(keepFresh, 1000 * Number(live.dataset.live));
}
setInterval(tellTimes, 5000);

// On a narrow screen the page and the view that are open may be beyond the edge of their strip.
function showCurrent() {
  all(".side [aria-current], .tabs [aria-current]").forEach((one) => {
    const strip = one.closest(".side, .tabs"), inner = one.getBoundingClientRect(), outer = strip.getBoundingClientRect();
    strip.scrollLeft += inner.left - outer.left - (outer.width - inner.width) / 2;
  });
}
showCurrent();

// Forms of filters leave out what is empty, so that addresses are short.
all("form.filters").forEach((form) => form.addEventListener("submit", () => {
  all("input, select", form).forEach((one) => { if (!one.value) one.disabled = true; });
}));
addEventListener("pageshow", () => all("form.filters :disabled").forEach((one) => { one.disabled = false; }));

// Keys: what has `data-key` is opened, pressed or focused by it.
let typed = "";
let forget = 0;

function use(element) {
  if (element.dataset.open) return document.getElementById(element.dataset.open).showModal();
  if (element.matches("input, select, textarea")) { element.focus(); if (element.select) element.select(); return undefined; }
  if (element.matches("details")) {
    element.open = !element.open;
    const first = element.open && element.querySelector("input:not([type=hidden]), textarea, button");
    return (first || element.querySelector("summary")).focus();
  }
  return element.click();
}

function move(step) {
  const rows = all("[data-row] a:first-of-type").filter((one) => one.closest("[data-row]").querySelector("a") === one);
  if (!rows.length) return;
  const at = rows.findIndex((one) => one.closest("[data-row]").contains(document.activeElement));
  rows[Math.max(0, Math.min(rows.length - 1, at + step))].focus();
}

function showKeys() {
  const list = document.querySelector("#keys dl");
  const known = new Map([["j", "Next row"], ["k", "Row before"], ["Enter", "Open the row"]]);
  all("[data-key]").forEach((one) => { if (!one.hidden) known.set(one.dataset.key, one.dataset.does); });
  list.replaceChildren(...[...known].flatMap(([keys, text]) => {
    const term = document.createElement("dt"), description = document.createElement("dd");
    term.append(...keys.split(" ").flatMap((key, place) => {
      const one = document.createElement("kbd");
      one.textContent = key;
      return place ? [" ", one] : [one];
    }));
    description.textContent = text;
    return [term, description];
  }));
}

all("[data-open]").forEach((button) => button.addEventListener("click", () => document.getElementById(button.dataset.open).showModal()));
all("[data-open=keys]").forEach((button) => button.addEventListener("click", showKeys, true));

addEventListener("keydown", (event) => {
  const target = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (target.matches("input, textarea, select")) {
    if (event.key === "Escape") target.blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "j" || event.key === "k") { move(event.key === "j" ? 1 : -1); return; }
  clearTimeout(forget);
  forget = setTimeout(() => { typed = ""; }, 1200);
  const known = all("[data-key]").filter((one) => !one.hidden && !one.disabled);
  for (const keys of [typed ? `${typed} ${event.key}` : event.key, event.key]) {
    const found = known.find((one) => one.dataset.key === keys);
    if (found) {
      event.preventDefault();
      typed = "";
      if (found.dataset.open === "keys") showKeys();
      use(found);
      return;
    }
    if (known.some((one) => one.dataset.key.startsWith(`${keys} `))) { typed = keys; return; }
  }
  typed = "";
});

// One menu of actions is open at a time.
document.addEventListener("toggle", (event) => {
  if (event.target.matches("details.act") && event.target.open) all("details.act[open]").forEach((one) => { if (one !== event.target) one.open = false; });
}, true);
document.addEventListener("click", (event) => all("details.act[open]").forEach((one) => { if (!one.contains(event.target)) one.open = false; }));
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  all("details.act[open]").forEach((one) => { one.open = false; one.querySelector("summary").focus(); });
});

// A step that cannot be taken back asks once more.
all("form[data-ask]").forEach((form) => form.addEventListener("submit", (event) => {
  if (!confirm(form.dataset.ask)) event.preventDefault();
}));
if (main && location.hash) { const one = document.getElementById(location.hash.slice(1)); if (one && one.matches("details")) one.open = true; }
