// A button on every block of commands that copies it.
document.querySelectorAll("div.highlight, pre:not(div.highlight pre)").forEach((block) => {
  const code = block.querySelector("code") || block;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy this block");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(code.textContent.trim() + "\n");
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  block.style.position = "relative";
  block.appendChild(button);
});
