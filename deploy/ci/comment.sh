#!/usr/bin/env bash
# Puts hostbound.md as one comment on a pull request; a second run updates it. Needs `gh` and GH_TOKEN.
set -euo pipefail

out=${HOSTBOUND_OUT:-${RUNNER_TEMP:-.}}
mark='<!-- hostbound -->'
issue=repos/$GITHUB_REPOSITORY/issues
{ echo "$mark"; cat "$out/hostbound.md"; } >"$out/hostbound-comment.md"
known=$(gh api --paginate "$issue/$HOSTBOUND_PULL_REQUEST/comments" \
  --jq ".[] | select(.body | startswith(\"$mark\")) | .id" | head -n 1)
if [ -n "$known" ]; then
  gh api --method PATCH "$issue/comments/$known" --field "body=@$out/hostbound-comment.md" --silent
else
  gh api --method POST "$issue/$HOSTBOUND_PULL_REQUEST/comments" --field "body=@$out/hostbound-comment.md" --silent
fi
