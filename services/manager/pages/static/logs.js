// A log that follows: it stays at its end while the reader is there, holds so many lines, and hides those without a text.
"use strict";

const MOST_LINES = 5000;
const log = document.getElementById("log");
const only = document.getElementById("only");
const follow = document.getElementById("follow");
const wrap = document.getElementById("wrap");
let isAtEnd = true;

function sift(lines) {
  const text = only.value.toLowerCase();
  for (const line of lines) line.hidden = !line.textContent.toLowerCase().includes(text);
}

function goToEnd() {
  log.scrollTop = log.scrollHeight;
}

only.addEventListener("input", () => {
  sift(log.querySelectorAll("div"));
  goToEnd();
});
wrap.addEventListener("change", () => log.classList.toggle("wrapped", wrap.checked));
follow.addEventListener("change", () => {
  isAtEnd = follow.checked;
  if (isAtEnd) goToEnd();
});

log.addEventListener("htmx:beforeRequest", (event) => {
  if (!follow.checked) event.preventDefault();
});
log.addEventListener("htmx:beforeSwap", () => {
  isAtEnd = log.scrollTop + log.clientHeight > log.scrollHeight - 30;
});
log.addEventListener("htmx:afterSettle", () => {
  for (let extra = log.children.length - 1 - MOST_LINES; extra > 0; extra--) log.firstElementChild.remove();
  if (only.value) sift(log.querySelectorAll("div"));
  if (isAtEnd) goToEnd();
});
goToEnd();
