const entries = [...document.querySelectorAll("nav li")];
document.getElementById("filter").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/);
  for (const entry of entries) {
    const text = entry.dataset.text.toLowerCase();
    entry.hidden = !words.every((word) => text.includes(word));
  }
  if (event.target.value) for (const group of document.querySelectorAll("nav details")) group.open = true;
});
