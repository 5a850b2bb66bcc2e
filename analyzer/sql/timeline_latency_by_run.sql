-- What was each run's un-profiled latency, and how many kernels did a decode step need?
-- Grain: one row per run. Medians in ns; NULL where not measured. kernels_per_token: mean kernels of a decode
-- step; without decode steps, kernels of all steps for each generated token.
WITH requests AS (
  SELECT
    run_id, quantile_disc(ttft_ns, 0.5) AS ttft_ns, quantile_disc(tpot_ns, 0.5) AS tpot_ns
  FROM latency
  GROUP BY run_id
),
decode AS (
  SELECT
    steps.run_id, sum(totals.kernels) AS kernels,
    sum(totals.kernels) FILTER (steps.phase = 'decode') AS decode_kernels,
    count(*) FILTER (steps.phase = 'decode') AS decode_steps,
    CASE WHEN count(totals.tklqt_ns) = count(*) THEN sum(totals.tklqt_ns)::BIGINT END AS tklqt_ns,
    sum(totals.launches)::BIGINT AS launches, count(*) AS steps
  FROM steps
  JOIN totals USING (run_id, trace_id, step_id)
  GROUP BY steps.run_id
)
SELECT
  runs.run_id, requests.ttft_ns, requests.tpot_ns,
  CASE WHEN decode.decode_steps > 0 THEN decode.decode_kernels / decode.decode_steps
    WHEN runs.new_tokens > 0 THEN decode.kernels / runs.new_tokens END AS kernels_per_token,
  decode.tklqt_ns
FROM runs
LEFT JOIN requests USING (run_id)
LEFT JOIN decode USING (run_id)
ORDER BY runs.run_id
