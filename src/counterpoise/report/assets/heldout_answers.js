// A bar of the held-out panel opens its group: the mosaic shows the iteration, the token view the row.
document.addEventListener("click", (event) => {
  const bar = event.target.closest?.(".traced .visit");
  if (!bar) return;
  poise.choose(Number(bar.dataset.iteration));
  poise.open(Number(bar.dataset.iteration), Number(bar.dataset.row));
});
