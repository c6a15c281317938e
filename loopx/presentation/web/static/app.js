// Keeps a page current and handy. Everything works without it; it adds news, ticking distances, copying and keys.
// What an agent wrote reaches the page as text only. Pages that the server rendered pass through one named policy.
"use strict";

const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("loopx", { createHTML: (html) => html })
  : { createHTML: (html) => html };
const body = document.body;
const words = body.dataset;
const link = document.getElementById("link");

function say(state) {
  if (link === null) return;
  link.dataset.state = state;
  link.textContent = words[state] || state;
}

// Distances: "14 s ago", "in 9 m".
function span(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} m` : `${hours} h`;
  return `${Math.floor(hours / 24)} d`;
}

const skew = Date.now() - Number(words.now);

function tick() {
  const now = Date.now() - skew;
  for (const one of document.querySelectorAll("[data-ago]")) {
    one.textContent = words.wordAgo.replace("{span}", span(now - Number(one.dataset.ago)));
  }
  for (const one of document.querySelectorAll("[data-until]")) {
    const left = Number(one.dataset.until) - now;
    one.textContent = left > 0 ? words.wordIn.replace("{span}", span(left)) : words.wordNow;
  }
  for (const one of document.querySelectorAll("[data-for]")) {
    one.textContent = span(now - Number(one.dataset.for));
  }
}

// News: the server says that something moved, and the parts of the page that differ are exchanged.
let loading = false;
let again = false;

function busy(part) {
  const focus = document.activeElement;
  const typed = [...part.querySelectorAll("input[type=text]")].some((input) => input.value !== "");
  const asked = part.querySelector("details.confirm[open]") !== null;
  return typed || asked || (part.contains(focus) && focus.matches("input, select"));
}

function exchange(old, fresh) {
  const opened = new Set([...old.querySelectorAll("details[open][id]")].map((one) => one.id));
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  for (const one of fresh.querySelectorAll("details[id]")) {
    if (opened.has(one.id)) one.open = true;
  }
  const tops = new Map([...old.querySelectorAll("[data-keep][id]")].map((one) => [one.id, one.scrollTop]));
  old.replaceWith(fresh);
  for (const [id, top] of tops) {
    const there = document.getElementById(id);
    if (there !== null) there.scrollTop = top;
  }
  if (focused) document.getElementById(focused)?.focus();
}

async function refresh() {
  if (loading) {
    again = true;
    return;
  }
  loading = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, credentials: "same-origin" });
    if (!answer.ok) return;
    const text = await answer.text();
    const page = new DOMParser().parseFromString(policy.createHTML(text), "text/html");
    for (const fresh of page.querySelectorAll("[data-part]")) {
      const old = document.getElementById(fresh.id);
      if (old !== null && old.dataset.mark !== fresh.dataset.mark && !busy(old)) exchange(old, fresh);
    }
    document.title = page.title;
    tick();
  } catch {
    say("lost");
  } finally {
    loading = false;
    if (again) {
      again = false;
      setTimeout(refresh, 250);
    }
  }
}

// The agent's stream, line by line.
const MOST = 500;

function append(line) {
  const list = document.getElementById("stream-lines");
  if (list === null) return;
  const box = list.closest(".stream");
  const low = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  const item = document.createElement("li");
  item.className = /^[a-z_]+$/.test(line.kind) ? line.kind : "";
  if (line.denied) item.classList.add("denied");
  const verb = document.createElement("span");
  verb.className = "verb";
  verb.textContent = line.verb;
  const text = document.createElement("p");
  text.className = "say";
  text.dir = "auto";
  text.textContent = line.text;
  item.append(verb, text);
  list.append(item);
  while (list.children.length > MOST) list.firstElementChild.remove();
  document.getElementById("stream-empty")?.setAttribute("hidden", "");
  if (low) box.scrollTop = box.scrollHeight;
}

function live() {
  const address = words.liveUrl;
  if (!address) return;
  const source = new EventSource(address);
  source.addEventListener("hello", () => say("live"));
  source.addEventListener("changed", refresh);
  source.addEventListener("lines", (event) => JSON.parse(event.data).forEach(append));
  source.addEventListener("fresh", () => document.getElementById("stream-lines")?.replaceChildren());
  source.addEventListener("error", () => say("lost"));
  window.addEventListener("pagehide", () => source.close());
}

// Copying a command.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button === null) return;
  const text = button.parentElement.querySelector("code").textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = words.wordCopied;
    setTimeout(() => { button.textContent = words.wordCopy; }, 1200);
  } catch {
    const range = document.createRange();
    range.selectNodeContents(button.parentElement.querySelector("code"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  }
});

// Keys, which a person may turn off.
const help = document.getElementById("keys");
const allowed = document.getElementById("keys-on");

function step(by) {
  const stops = [...document.querySelectorAll("[data-stop]")];
  const at = stops.indexOf(document.activeElement);
  const next = stops[at < 0 ? (by > 0 ? 0 : stops.length - 1) : at + by];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  b: () => { location.href = "/"; },
  r: () => refresh(),
  "?": () => help?.showModal(),
};

function stored() {
  try { return localStorage.getItem("loopx-keys"); } catch { return null; }
}

if (allowed !== null) {
  allowed.checked = stored() !== "off";
  allowed.addEventListener("change", () => {
    try { localStorage.setItem("loopx-keys", allowed.checked ? "on" : "off"); } catch { /* Nothing is remembered. */ }
  });
}
document.getElementById("keys-open")?.addEventListener("click", () => help?.showModal());
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  if (allowed?.checked && KEYS[event.key] !== undefined && !help?.open) {
    event.preventDefault();
    KEYS[event.key]();
  }
});

for (const box of document.querySelectorAll(".stream")) box.scrollTop = box.scrollHeight;
tick();
setInterval(tick, 1000);
live();
