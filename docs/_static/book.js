(() => {
  // The reader chooses how many levels to see; the choice is remembered, and a link into a hidden level opens it.
  const root = document.documentElement;
  const order = ["core", "deepen", "research"];

  const show = (level) => {
    root.dataset.levels = level;
    for (const button of document.querySelectorAll(".level-switch button")) {
      button.setAttribute("aria-pressed", String(button.dataset.level === level));
    }
  };

  const openTarget = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const level = target && target.closest("section.level");
    if (level && order.indexOf(level.id) > order.indexOf(root.dataset.levels)) {
      show(level.id);
      target.scrollIntoView();
    }
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".level-switch button");
    if (button) {
      localStorage.setItem("levels", button.dataset.level);
      show(button.dataset.level);
    }
  });
  addEventListener("hashchange", openTarget);
  show(root.dataset.levels || "research");
  openTarget();
  const sought = new URLSearchParams(location.search).get("highlight");
  if (sought && !location.hash) show("research");

  // Paper is light.
  let screenTheme;
  matchMedia("print").addEventListener("change", ({ matches }) => {
    if (matches) screenTheme = root.dataset.theme;
    root.dataset.theme = matches ? "light" : screenTheme;
  });

  // What scrolls sideways can be reached by keyboard.
  const reachable = () => {
    const boxes = [...document.querySelectorAll("div.math, .table-wrapper, .pst-scrollable-table-container, pre")];
    const wide = boxes.map((box) => box.scrollWidth > box.clientWidth);
    boxes.forEach((box, i) => {
      if (wide[i]) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    });
  };
  addEventListener("resize", reachable);
  addEventListener("load", reachable);
})();
