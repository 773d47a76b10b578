// Pages work without this script. It refreshes open pages and adds keyboard shortcuts.
"use strict";

const main = document.getElementById("main");
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

// Shows the buttons that need this script.
all(".scripted").forEach((button) => { button.hidden = false; });

// Updates relative times such as "3 min ago".
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
  tellExactly();
}

// Shows the exact time, in this browser's zone and in UTC, as a title and beside a time that is touched or copied.
const two = (number) => String(number).padStart(2, "0");

function exact(time) {
  const date = new Date(time), zone = -date.getTimezoneOffset(), size = Math.abs(zone);
  const local = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
  const utc = date.toISOString().replace("T", " ").replace("Z", " UTC");
  return zone ? `${local} ${zone < 0 ? "−" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)} · ${utc}` : utc;
}

function tellExactly() {
  all("time[datetime]").forEach((one) => { const text = exact(one.dateTime); if (one.title !== text) one.title = text; });
}
tellExactly();

const told = document.createElement("span");
told.className = "told";

addEventListener("pointerup", (event) => {
  told.remove();
  const time = event.pointerType === "touch" && event.target instanceof Element && event.target.closest("time[datetime]");
  if (!time) return;
  told.textContent = exact(time.dateTime);
  document.body.append(told);
  const place = time.getBoundingClientRect();
  told.style.left = `${Math.max(4, Math.min(place.left, innerWidth - told.offsetWidth - 4))}px`;
  told.style.top = `${place.bottom + 4}px`;
});
addEventListener("scroll", () => told.remove(), true);

addEventListener("copy", (event) => {
  const selected = getSelection();
  if (!selected.rangeCount || selected.isCollapsed || event.target.closest && event.target.closest("input, textarea")) return;
  const range = selected.getRangeAt(0), kept = range.cloneRange();
  const times = all("time[datetime]").filter((one) => range.intersectsNode(one));
  if (!times.length) return;
  if (times[0].contains(range.startContainer)) range.setStartBefore(times[0]);
  if (times.at(-1).contains(range.endContainer)) range.setEndAfter(times.at(-1));
  times.forEach((one) => { one.append(` (${exact(one.dateTime)})`); });
  event.clipboardData.setData("text/plain", String(selected));
  times.forEach((one) => one.lastChild.remove());
  selected.removeAllRanges();
  selected.addRange(kept);
  event.preventDefault();
});

// Measures by how much the browser's clock differs from the server's. The browser's clock may be wrong.
function learnClock(response) {
  const date = Date.parse(response.headers.get("Date") || "");
  if (!Number.isNaN(date)) offset = Date.now() - date;
}

// A live page replaces elements with `data-fresh` by the server's current elements. In the element `live`, nothing moves
// that a person may be about to click: cells of rows with keys change in place, missing rows are disabled, and a button
// shows new rows. If `live` has no such rows, it is replaced while nobody points at `live` or types.
const live = document.querySelector("[data-live]");
const news = document.getElementById("news");
let isDone = false, isAsking = false, latest = null, timer = 0, answeredAt = Date.now();

// A notice belongs to the last action, so it is removed from the address.
const notice = document.querySelector(".notice");
if (notice) {
  const address = new URL(location.href);
  address.searchParams.delete("notice");
  history.replaceState(null, "", address);
}

const rowsOf = (place) => new Map(all("[data-row], [data-item]", place).map((one) => [one.dataset.row || one.dataset.item, one]).filter(([key]) => key));

// Returns the content of an element without the parts that differ in each response.
function contentOf(element, withRows = true) {
  const copy = element.cloneNode(true);
  if (!withRows) rowsOf(copy).forEach((row) => row.remove());
  all("[name=nonce], [name=seen]", copy).forEach((one) => one.remove());
  all("time", copy).forEach((one) => { one.textContent = ""; one.removeAttribute("title"); });
  all("details", copy).forEach((one) => one.removeAttribute("open"));
  all("[hidden]", copy).forEach((one) => one.removeAttribute("hidden"));
  return copy.innerHTML;
}

// Replaces an element's content, unless a control of the page would move. Returns whether it was replaced.
function replaceInPlace(element, fresh) {
  const controls = all("a, button, input, select, summary, textarea", main).map((one) => [one, one.getBoundingClientRect()]);
  const old = [...element.childNodes];
  element.replaceChildren(...document.importNode(fresh, true).childNodes);
  const moves = controls.some(([one, place]) => {
    const now = one.getBoundingClientRect();
    return one.isConnected && (Math.abs(now.left - place.left) > 0.5 || Math.abs(now.top - place.top) > 0.5);
  });
  if (moves) element.replaceChildren(...old);
  return !moves;
}

// Writes into a note who ended an interrupt or a run, as its page says in JSON.
async function tellWho(element, note) {
  const found = [];
  for (const one of [element, ...all("[data-about]", element)].filter((one) => one.dataset.about).slice(0, 3)) {
    try {
      const response = await fetch(one.dataset.about, { headers: { Accept: "application/json" } });
      const told = response.ok && (await response.json()).told;
      if (told) found.push(told);
    } catch { /* The note keeps its text. */ }
  }
  if (found.length) note.textContent = note.title = found.join(" · ");
}

function disable(element, why) {
  // Text fields become read-only, so that typed text can still be copied.
  all("button, input, select, textarea", element).forEach((one) => { if (one.matches("textarea, input[type=text]")) one.readOnly = true; else one.disabled = true; });
  if (element.querySelector(".why")) return;
  const note = document.createElement("span"), isRow = element.matches("tr");
  note.className = "why";
  note.textContent = why;
  // The note takes the place of the first button, because all buttons are hidden now.
  const button = all("button, summary.button", isRow ? element.lastElementChild : element).find((one) => one.getClientRects().length);
  if (button) {
    note.classList.add("over");
    if (!isRow) {
      const inner = button.getBoundingClientRect(), outer = element.getBoundingClientRect();
      note.style.left = `${inner.left - outer.left}px`;
      note.style.top = `${inner.top - outer.top}px`;
      note.style.maxWidth = `${outer.right - inner.left - 12}px`;
    }
  }
  tellWho(element, note);
  (isRow ? element.children[button ? element.children.length - 1 : 0] : element).append(note);
  element.classList.add("gone");
}

// Returns whether a row differs from the server's row and could not be changed in place.
function renewRow(row, found) {
  if (row.matches(".gone")) return true;
  if (!row.matches("tr") || row.children.length !== found.children.length) return contentOf(row) !== contentOf(found);
  let differs = false;
  [...row.children].forEach((cell, place) => {
    const fresh = found.children[place];
    if (contentOf(cell) === contentOf(fresh)) return;
    if (cell.querySelector("form") || fresh.querySelector("form")) { disable(row, "Changed meanwhile"); differs = true; }
    else if (cell.matches(":hover") || cell.contains(document.activeElement) || !replaceInPlace(cell, fresh)) differs = true;
  });
  return differs;
}

function renewList(place, found, moves) {
  const old = rowsOf(place), now = rowsOf(found);
  const known = [...now.keys()].filter((key) => old.has(key));
  const added = [...now].filter(([key, row]) => !old.has(key) && row.dataset.row).length;
  let gone = 0;
  let differs = moves || now.size > known.length + added || contentOf(place, false) !== contentOf(found, false) || known.join("\n") !== [...old.keys()].filter((key) => now.has(key)).join("\n");
  old.forEach((row, key) => {
    if (now.has(key)) { differs = renewRow(row, now.get(key)) || differs; return; }
    gone += row.dataset.row ? 1 : 0;
    disable(row, (row.closest("[data-gone]") || row).dataset.gone || "No longer here");
  });
  const counts = [added ? `${added} new` : "", gone ? `${gone} gone` : ""].filter(Boolean);
  offer(counts.length ? counts.join(", ") : differs ? "Changed" : "");
}

function offer(text) {
  news.hidden = !text;
  const label = text && `${text}, show`;
  if (news.textContent !== label) news.textContent = label;
}

// On a touch screen, or while a pointer moves, the person may be about to touch any place.
const hovers = matchMedia("(hover: hover)");
let movedAt = 0;
["pointermove", "pointerdown", "wheel", "keydown"].forEach((kind) => addEventListener(kind, () => { movedAt = Date.now(); }, { passive: true }));

function isTouched(place) {
  if (!hovers.matches || Math.abs(Date.now() - movedAt) < 1000) return true;
  const typed = all("input:not([type=hidden]), textarea", place).some((one) => one.value !== one.defaultValue || one.checked !== one.defaultChecked);
  return typed || place.matches(":hover") || place.contains(document.activeElement) || Boolean(String(getSelection())) || place.querySelector("details.act[open]");
}

// Returns a name by which an element is found again after a refresh.
function nameOf(element) {
  if (element.id) return element.id;
  if (element.dataset.row) return `row ${element.dataset.row}`;
  const parent = element.parentElement;
  if (!parent || element.id === "live") return "";
  const key = element.matches("details") && element.querySelector(":scope > summary .key");
  return `${nameOf(parent)} ${key ? key.textContent : [...parent.children].indexOf(element)}`;
}

const fieldName = (one) => `${one.form ? one.form.getAttribute("action") : ""} ${one.name} ${one.type === "radio" ? one.value : ""}`;

function show(page) {
  const place = document.getElementById("live"), found = page.getElementById("live");
  const focused = place.contains(document.activeElement) ? nameOf(document.activeElement) : "";
  freshPairs(page).forEach(([one, fresh]) => one.replaceChildren(...document.importNode(fresh, true).childNodes));
  const opened = new Map(all("details", place).map((one) => [nameOf(one), one.open]));
  const scrolled = all("*", place).filter((one) => one.scrollTop || one.scrollLeft).map((one) => [nameOf(one), one.scrollTop, one.scrollLeft]);
  const fields = new Map(all("input:not([type=hidden]), textarea, select", place).map((one) => [fieldName(one), one]));
  if (notice) notice.remove();
  place.replaceChildren(...document.importNode(found, true).childNodes);
  all(".scripted", place).forEach((button) => { button.hidden = false; });
  showCurrent();
  all("details", place).forEach((one) => { const open = opened.get(nameOf(one)); if (open !== undefined && one.open !== open) one.open = open; });
  all("input:not([type=hidden]), textarea, select", place).forEach((one) => {
    const old = fields.get(fieldName(one));
    if (old && (one.matches("select") || old.value !== old.defaultValue || old.checked !== old.defaultChecked)) { one.value = old.value; one.checked = old.checked; }
  });
  const names = new Map(scrolled.length || focused ? all("*", place).map((one) => [nameOf(one), one]) : []);
  scrolled.forEach(([name, top, left]) => { const one = names.get(name); if (one) { one.scrollTop = top; one.scrollLeft = left; } });
  if (focused && names.get(focused)) names.get(focused).focus({ preventScroll: true });
  offer("");
  tellTimes();
}

// Returns the changed elements outside of `live`, each with its new version.
function freshPairs(page) {
  const fresh = all("[data-fresh]", page);
  return all("[data-fresh]").map((one, at) => [one, fresh[at]]).filter(([one, found]) => found && contentOf(found) !== contentOf(one));
}

async function refresh() {
  const response = await fetch(live.dataset.from || location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(15000) });
  if (response.status === 401 || response.redirected) { sayLive("Not live: you are signed out. Reload the page"); return; }
  if (!response.ok) { sayLive(`Not live: the server answers ${response.status}`); return; }
  learnClock(response);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const found = page.getElementById("live"), place = document.getElementById("live");
  if (!found || !place) return;
  document.title = page.title;
  const moves = freshPairs(page).filter(([one, fresh]) => !replaceInPlace(one, fresh)).length > 0;
  // The last spans of a run may arrive after its end, so refresh once more.
  const hasEnded = !page.querySelector("[data-live]");
  isDone = hasEnded && live.hidden;
  live.hidden = hasEnded;
  latest = page;
  answeredAt = Date.now();
  sayLive("Live");
  if (rowsOf(place).size) renewList(place, found, moves);
  else if (!moves && contentOf(place) === contentOf(found)) offer("");
  else if (isTouched(place)) offer("Changed");
  else show(page);
  tellTimes();
}

const isOn = () => live.getAttribute("aria-pressed") === "true";

function sayLive(text) {
  if (live.textContent !== text) live.textContent = text;
  live.classList.toggle("stopped", text !== "Live");
}

// Shows that a response is overdue, because the connection is lost or this computer slept.
function noticeSilence() {
  const silent = Math.abs(Date.now() - answeredAt) > 3000 * Number(live.dataset.live);
  if (silent && !isDone && isOn() && !document.hidden && live.textContent === "Live") sayLive("Not live: the server does not answer");
}

async function keepFresh() {
  clearTimeout(timer);
  if (isAsking) return;
  if (!isOn()) sayLive("Not live: paused");
  else if (document.hidden) sayLive("Not live: in the background");
  else {
    isAsking = true;
    try { await refresh(); } catch { sayLive("Not live: the server does not answer"); }
    isAsking = false;
  }
  if (!isDone) timer = setTimeout(keepFresh, 1000 * Number(live.dataset.live));
}

if (live) {
  live.setAttribute("aria-pressed", String(localStorage.getItem("pgstate-live") !== "off"));
  if (!isOn()) sayLive("Not live: paused");
  live.addEventListener("click", () => {
    live.setAttribute("aria-pressed", String(!isOn()));
    localStorage.setItem("pgstate-live", isOn() ? "on" : "off");
    keepFresh();
  });
  news.addEventListener("click", () => { if (latest) show(latest); });
  document.addEventListener("visibilitychange", keepFresh);
  timer = setTimeout(keepFresh, 1000 * Number(live.dataset.live));
  setInterval(noticeSilence, 1000);
}
setInterval(tellTimes, 5000);

// Sends a form only once. Reloads a page from the browser's cache, because it may be old.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "true";
});
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

// Asks before a person leaves a page with typed text in a large form.
let isSent = false;
document.addEventListener("submit", () => { isSent = true; });
addEventListener("beforeunload", (event) => {
  const isTyped = all("form[data-typed] :is(input:not([type=hidden]), textarea, select)").some((one) => (one.matches("select") ? ![...one.options].some((option) => option.defaultSelected) ? one.selectedIndex > 0 : !one.selectedOptions[0].defaultSelected : one.value !== one.defaultValue || one.checked !== one.defaultChecked));
  if (isTyped && !isSent) event.preventDefault();
});

// Marks a field's problem as corrected when the field changes.
addEventListener("input", (event) => {
  const field = event.target.closest("label.field"), problem = field && field.nextElementSibling;
  if (problem && problem.matches(".problem")) problem.classList.add("corrected");
});

// On a narrow screen, scrolls the navigation so that the current page and view are visible.
function showCurrent() {
  all(".side [aria-current], .tabs [aria-current]").forEach((one) => {
    const strip = one.closest(".side, .tabs"), inner = one.getBoundingClientRect(), outer = strip.getBoundingClientRect();
    strip.scrollLeft += inner.left - outer.left - (outer.width - inner.width) / 2;
  });
}
showCurrent();

// Leaves empty filters out of addresses.
all("form.filters").forEach((form) => form.addEventListener("submit", () => {
  all("input, select", form).forEach((one) => { if (!one.value) one.disabled = true; });
}));
addEventListener("pageshow", () => all("form.filters :disabled").forEach((one) => { one.disabled = false; }));

// Keyboard shortcuts: the key in `data-key` opens, presses or focuses the element.
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

// People who use voice control, or type by accident, can switch the shortcuts off.
const keysOn = document.getElementById("keys-on");
if (keysOn) {
  keysOn.checked = localStorage.getItem("pgstate-keys") !== "off";
  keysOn.addEventListener("change", () => localStorage.setItem("pgstate-keys", keysOn.checked ? "on" : "off"));
}

addEventListener("keydown", (event) => {
  const target = event.target;
  if (keysOn && !keysOn.checked && event.key !== "Escape") return;
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

if (main && location.hash) { const one = document.getElementById(location.hash.slice(1)); if (one && one.matches("details")) one.open = true; }
