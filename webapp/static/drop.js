// Files that are dropped anywhere on the page go to its uploader.
export default function () {
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const over = (event) => {
    if (hasFiles(event)) event.preventDefault();
  };
  const drop = (event) => {
    const input = document.querySelector("[data-testid=stFileUploader] input[type=file]");
    if (!hasFiles(event) || !input || event.target.closest?.("[data-testid=stFileUploader]")) return;
    event.preventDefault();
    input.files = event.dataTransfer.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  };
  document.addEventListener("dragover", over);
  document.addEventListener("drop", drop);
  return () => {
    document.removeEventListener("dragover", over);
    document.removeEventListener("drop", drop);
  };
}
