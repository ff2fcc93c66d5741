// What all pages do: the theme's button, moments in the reader's zone, and word of a server that is away.
"use strict";

const THEMES = ["", "light", "dark"];

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme || "") + 1) % THEMES.length];
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  localStorage.setItem("theme", next);
  document.dispatchEvent(new Event("theme"));
});

function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]"))
    if (time.classList.contains("clock")) time.textContent = new Date(time.dateTime).toLocaleString();
    else time.title = new Date(time.dateTime).toLocaleString();
}

const AWAY = "The server does not answer. The page goes on when it does.";

function say(text) {
  const place = document.getElementById("problem");
  place.replaceChildren();
  if (!text) return;
  const line = document.createElement("p");
  line.className = "problem";
  line.textContent = text;
  place.append(line);
}

for (const name of ["htmx:sendError", "htmx:timeout"])
  document.addEventListener(name, () => say(AWAY));
document.addEventListener("htmx:afterOnLoad", (event) => {
  if (event.detail.successful && document.getElementById("problem").textContent.includes(AWAY)) say("");
});
document.addEventListener("htmx:beforeRequest", (event) => {
  if (event.detail.requestConfig.verb !== "get") say("");
});
// What is put into the dialog opens it, once htmx answers for its form: before that the browser would send it by itself.
// An answer to it that went well closes it.
const dialog = document.getElementById("dialog");
document.addEventListener("htmx:afterSettle", (event) => {
  if (event.detail.target === dialog && !dialog.open) dialog.showModal();
});
document.addEventListener("htmx:afterOnLoad", (event) => {
  if (event.detail.successful && dialog.contains(event.detail.elt)) dialog.close();
});

document.addEventListener("htmx:load", (event) => localise(event.detail.elt));
localise(document);
