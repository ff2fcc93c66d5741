// A chosen file's text goes into the form, where it can still be changed.
"use strict";

document.getElementById("file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (file) document.getElementById("config").value = await file.text();
});
