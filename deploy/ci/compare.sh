#!/usr/bin/env bash
# Compares HOSTBOUND_RUN with HOSTBOUND_BASE, writes the answer as Markdown, and fails as `analyzer compare` does:
# 1 a condition of HOSTBOUND_FAIL_IF (one a line) holds, 2 something cannot be read, 3 a trace cannot support what was
# asked. The answer goes to hostbound.md in the job's folder and, in GitHub Actions, to the job's summary.
set -euo pipefail

out=${HOSTBOUND_OUT:-${RUNNER_TEMP:-.}}
store=$out/hostbound.duckdb
rm -f "$store"

run_id() {
  analyzer ingest "$1" --db "$store" --json >"$out/hostbound-ingest.json" || true
  python - "$1" "$out/hostbound-ingest.json" <<'END'
import json, sys
text = open(sys.argv[2]).read()  # empty: the line above says why
entries = json.loads(text) if text else []
ids = [entry["run_id"] for entry in entries if entry["run_id"]]
if len(ids) != 1:
    print(f"{sys.argv[1]}: one run is needed, {len(ids)} were found", file=sys.stderr)
    sys.exit(2)
print(ids[0])
END
}

base=$(run_id "$HOSTBOUND_BASE")
run=$(run_id "$HOSTBOUND_RUN")
if [ "$base" = "$run" ]; then
  echo "HOSTBOUND_RUN and HOSTBOUND_BASE are the same recording" >&2
  exit 2
fi

conditions=()
while IFS= read -r line; do
  [ -z "${line// /}" ] || conditions+=(--fail-if "$line")
done <<<"${HOSTBOUND_FAIL_IF:-}"

status=0
analyzer compare "$base" "$run" --db "$store" --format markdown ${conditions[@]+"${conditions[@]}"} \
  >"$out/hostbound.md" 2>"$out/hostbound.err" || status=$?
cat "$out/hostbound.err" >&2
if [ -s "$out/hostbound.err" ]; then
  { echo; echo '```'; cat "$out/hostbound.err"; echo '```'; } >>"$out/hostbound.md"
fi
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
  cat "$out/hostbound.md" >>"$GITHUB_STEP_SUMMARY"
fi
exit "$status"
