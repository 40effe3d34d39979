// The sliders. Everything that they show is in the table of all heads, which is there without JavaScript, too.
for (const viewer of document.querySelectorAll(".viewer")) {
  const table = document.getElementById(viewer.dataset.heads);
  const map = viewer.querySelector(".seen img");
  const [block, head] = viewer.querySelectorAll("input");
  const [blockName, headName] = viewer.querySelectorAll("output");
  const show = () => {
    const cell = table.querySelector(`[data-block="${block.value}"][data-head="${head.value}"] img`);
    map.src = cell.src;
    map.alt = cell.alt;
    blockName.textContent = block.value;
    headName.textContent = head.value === "-1" ? "mean of all" : head.value;
  };
  block.addEventListener("input", show);
  head.addEventListener("input", show);
  show();
  viewer.hidden = false;
  table.open = false;
}
