// Before the page is painted: the colours that the reader chose. Nothing chosen is as the system has it.
const chosen = localStorage.getItem("theme");
if (chosen) document.documentElement.dataset.theme = chosen;
