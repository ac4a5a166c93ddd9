// The choice of the x axis and of the runs that are shown, for all charts together.
{
  const bar = document.querySelector(".bar");
  const runs = [...bar.querySelectorAll(".runs button")];
  const chosen = () => {
    const along = bar.querySelector("[name=along]:checked");
    poise.signal("at", -1);
    if (along) poise.signal("along", along.value);
  };
  bar.addEventListener("change", chosen);
  for (const run of runs) {
    run.addEventListener("click", () => {
      run.setAttribute("aria-pressed", run.getAttribute("aria-pressed") !== "true");
      poise.signal("shown", runs.map((one) => one.getAttribute("aria-pressed") === "true"));
    });
  }
  chosen(); // a browser may remember the choice
}
