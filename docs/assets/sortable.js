// Makes the tables inside <div class="sortable"> sortable by a click on a heading. Without JavaScript they are tables.
"use strict";

for (const table of document.querySelectorAll("div.sortable table")) {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const headings = Array.from(table.tHead.rows[0].cells);
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.className = "sort";
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const text = (row) => row.cells[column].textContent.trim();
      // Numbers as they are printed: "1,012.6", "~81.4", "334.78 MiB". Empty cells are last in both directions.
      const number = (value) => {
        const [, digits, unit] = value.match(/^~?([\d,.]+)(?: ([MG])iB)?$/) ?? [];
        return digits ? parseFloat(digits.replace(/,/g, "")) * (unit === "G" ? 1024 : 1) : NaN;
      };
      body.append(
        ...rows.toSorted((a, b) => {
          const [x, y] = [text(a), text(b)];
          if (!x || !y) return (x ? 0 : 1) - (y ? 0 : 1);
          const [p, q] = [number(x), number(y)];
          return sign * (Number.isNaN(p) || Number.isNaN(q) ? x.localeCompare(y, "en") : p - q);
        }),
      );
    });
  });
}
