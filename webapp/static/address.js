// Parameters of the address that the page added by itself: in place, so that Back skips nothing.
export default function ({ data }) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(data)) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  if (url.href !== location.href) history.replaceState(history.state, "", url);
}
