// The theme's button for the menu of narrow windows is a label, which Tab passes by: a button for keyboards and readers.
"use strict";

for (const label of document.querySelectorAll('label.md-header__button[for="__drawer"]')) {
  label.tabIndex = 0;
  label.setAttribute("role", "button");
  label.setAttribute("aria-label", "Menu");
  label.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    label.click();
    document.querySelector(".md-nav--primary a.md-nav__link, .md-nav--primary a")?.focus();
  });
}
