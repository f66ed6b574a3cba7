"use strict";
// Steps of recall: a slider shows of every strip the frame of its step, or the last one before it.
for (const scrub of document.querySelectorAll(".scrub")) {
  const slider = scrub.querySelector("input");
  const shown = scrub.parentElement.querySelectorAll(".strip img");
  const steps = [...new Set([...shown].map((image) => Number(image.dataset.step)))].filter(Boolean).sort((a, b) => a - b);
  slider.max = slider.value = steps.length - 1;
  const show = () => {
    const step = steps[slider.value];
    scrub.querySelector("output").textContent = step;
    for (const strip of scrub.parentElement.querySelectorAll(".strip")) {
      const frames = [...strip.querySelectorAll("img")];
      const past = frames.filter((frame) => Number(frame.dataset.step) <= step);
      const shown = past.length ? past[past.length - 1] : frames[0];
      for (const frame of frames) frame.hidden = frame !== shown;
    }
  };
  slider.addEventListener("input", show);
  show();
  scrub.hidden = false;
}
// Figures: a click shows one on the whole screen, another makes it larger.
const dialog = document.querySelector("dialog");
const large = dialog.appendChild(new Image());
const zoom = (picture) => {
  large.src = picture.src;
  large.alt = picture.alt;
  large.classList.remove("larger");
  large.classList.toggle("paper", picture.classList.contains("paper"));
  large.style.setProperty("--shape", picture.width / picture.height);
  dialog.showModal();
};
for (const picture of document.querySelectorAll(".panels img")) {
  picture.classList.add("zoomable");
  picture.tabIndex = 0;
  picture.addEventListener("click", () => zoom(picture));
  picture.addEventListener("keydown", (event) => { if (event.key === "Enter") zoom(picture); });
}
large.addEventListener("click", () => large.classList.toggle("larger"));
dialog.querySelector("button").addEventListener("click", () => dialog.close());
