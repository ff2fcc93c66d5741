// What is known of the token under the pointer, or of the one to which the arrow keys went.
"use strict";

const place = document.getElementById("tokens");
const facts = document.getElementById("token-facts");
const tokens = [...place.querySelectorAll("[data-at]")];
let current = -1;

function tell(token) {
  const { at, id, log } = token.dataset;
  const known = [`token ${Number(at) + 1}`, `number ${id}`, JSON.stringify(token.textContent)];
  if (log === undefined) known.push("given by the environment");
  else {
    const { version, replica } = token.parentElement.dataset;
    known.push(`probability ${Math.exp(Number(log)).toPrecision(3)}`, `log-probability ${log}`);
    known.push(`version ${version}`, replica);
  }
  facts.textContent = known.join(" · ");
}

function go(index) {
  if (!tokens.length) return;
  if (current >= 0) tokens[current].classList.remove("current");
  current = Math.max(0, Math.min(tokens.length - 1, index));
  tokens[current].classList.add("current");
  tokens[current].scrollIntoView({ block: "nearest" });
  tell(tokens[current]);
}

place.addEventListener("pointerover", (event) => {
  const token = event.target.closest("[data-at]");
  if (token) tell(token);
});
place.addEventListener("click", (event) => {
  const token = event.target.closest("[data-at]");
  if (token) go(tokens.indexOf(token));
});
place.addEventListener("keydown", (event) => {
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 };
  if (event.key in steps) go(current + steps[event.key]);
  else if (event.key === "Home") go(0);
  else if (event.key === "End") go(tokens.length - 1);
  else return;
  event.preventDefault();
});
