"use strict";
(() => {
  const list = document.querySelector(".cards");
  const form = document.querySelector(".controls");
  if (!list || !form) return;
  const cards = [...list.children];
  const count = document.querySelector("#count");
  const orders = {
    sampled: (a, b) => a.dataset.at - b.dataset.at,
    clip: (a, b) => b.dataset.clip - a.dataset.clip || a.dataset.at - b.dataset.at,
    expected: (a, b) => a.dataset.expected.localeCompare(b.dataset.expected) || a.dataset.at - b.dataset.at,
    question: (a, b) => a.dataset.question.localeCompare(b.dataset.question) || a.dataset.at - b.dataset.at,
  };
  function update() {
    const wanted = Object.fromEntries(new FormData(form));
    const words = wanted.words.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const card of cards) {
      const text = card.textContent.toLowerCase();
      const fits = ["type", "error", "status"].every((key) => !wanted[key] || card.dataset[key] === wanted[key]);
      card.hidden = !(fits && words.every((word) => text.includes(word)));
      shown += !card.hidden;
    }
    list.append(...cards.toSorted(orders[wanted.order]));
    count.textContent = `${shown} of ${cards.length} shown`;
  }
  form.hidden = false;
  form.addEventListener("input", update);
  form.addEventListener("reset", () => setTimeout(update));
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
})();
