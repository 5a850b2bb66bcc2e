// Files that are dropped anywhere on the page go to its uploader, once that is there and the page
// has come to rest: until then it would forget them.
const RETRY_MS = 200;

const deliver = (files) => {
  const input = document.querySelector("[data-testid=stFileUploader] input[type=file]");
  const app = document.querySelector("[data-testid=stApp]");
  if (!input || app?.dataset.testScriptState !== "notRunning") {
    setTimeout(deliver, RETRY_MS, files);
    return;
  }
  input.files = files.files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
};

export default function () {
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const over = (event) => {
    if (hasFiles(event)) event.preventDefault();
  };
  const drop = (event) => {
    if (!hasFiles(event) || event.target.closest?.("[data-testid=stFileUploader]")) return;
    event.preventDefault();
    const files = new DataTransfer();
    for (const file of event.dataTransfer.files) files.items.add(file);
    deliver(files);
  };
  document.addEventListener("dragover", over);
  document.addEventListener("drop", drop);
  return () => {
    document.removeEventListener("dragover", over);
    document.removeEventListener("drop", drop);
  };
}
