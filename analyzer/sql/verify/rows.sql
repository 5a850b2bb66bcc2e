-- Does every row belong to a run of the store, and has every run what an ingest always writes?
-- Grain: one row per run and table with rows of no run, or without rows that must be there.
WITH present AS (
  SELECT run_id, 'files' AS source, count(*) AS n FROM files GROUP BY run_id
  UNION ALL
  SELECT run_id, 'traces' AS source, count(*) AS n FROM traces GROUP BY run_id
  UNION ALL
  SELECT run_id, 'event_counts' AS source, count(*) AS n FROM event_counts GROUP BY run_id
  UNION ALL
  SELECT run_id, 'trace_quality' AS source, count(*) AS n FROM trace_quality GROUP BY run_id
  UNION ALL
  SELECT run_id, 'checks' AS source, count(*) AS n FROM checks GROUP BY run_id
  UNION ALL
  SELECT run_id, 'names' AS source, count(*) AS n FROM names GROUP BY run_id
  UNION ALL
  SELECT run_id, 'shapes' AS source, count(*) AS n FROM shapes GROUP BY run_id
  UNION ALL
  SELECT run_id, 'threads' AS source, count(*) AS n FROM threads GROUP BY run_id
  UNION ALL
  SELECT run_id, 'steps' AS source, count(*) AS n FROM steps GROUP BY run_id
  UNION ALL
  SELECT run_id, 'ops' AS source, count(*) AS n FROM ops GROUP BY run_id
  UNION ALL
  SELECT run_id, 'calls' AS source, count(*) AS n FROM calls GROUP BY run_id
  UNION ALL
  SELECT run_id, 'kernels' AS source, count(*) AS n FROM kernels GROUP BY run_id
  UNION ALL
  SELECT run_id, 'device_events' AS source, count(*) AS n FROM device_events GROUP BY run_id
  UNION ALL
  SELECT run_id, 'launches' AS source, count(*) AS n FROM launches GROUP BY run_id
  UNION ALL
  SELECT run_id, 'ledger' AS source, count(*) AS n FROM ledger GROUP BY run_id
  UNION ALL
  SELECT run_id, 'totals' AS source, count(*) AS n FROM totals GROUP BY run_id
  UNION ALL
  SELECT run_id, 'floors' AS source, count(*) AS n FROM floors GROUP BY run_id
  UNION ALL
  SELECT run_id, 'replay_kernels' AS source, count(*) AS n FROM replay_kernels GROUP BY run_id
  UNION ALL
  SELECT run_id, 'matches' AS source, count(*) AS n FROM matches GROUP BY run_id
  UNION ALL
  SELECT run_id, 'latency' AS source, count(*) AS n FROM latency GROUP BY run_id
  UNION ALL
  SELECT run_id, 'step_latency' AS source, count(*) AS n FROM step_latency GROUP BY run_id
  UNION ALL
  SELECT run_id, 'python_functions' AS source, count(*) AS n FROM python_functions GROUP BY run_id
  UNION ALL
  SELECT run_id, 'ranks' AS source, count(*) AS n FROM ranks GROUP BY run_id
  UNION ALL
  SELECT run_id, 'collectives' AS source, count(*) AS n FROM collectives GROUP BY run_id
  UNION ALL
  SELECT run_id, 'waits' AS source, count(*) AS n FROM waits GROUP BY run_id
),
needed AS (SELECT unnest(['files', 'traces', 'event_counts', 'checks', 'steps', 'totals']) AS source)
SELECT
  present.run_id,
  present.n || ' rows in ' || present.source || ' belong to no run of the store' AS message
FROM present
LEFT JOIN runs USING (run_id)
WHERE runs.run_id IS NULL
UNION ALL
SELECT
  runs.run_id, 'the run has no row in ' || needed.source || '; load it again with --replace'
FROM runs
CROSS JOIN needed
LEFT JOIN present ON present.run_id = runs.run_id AND present.source = needed.source
WHERE present.n IS NULL
UNION ALL
SELECT
  runs.run_id, 'the run has no totals of its own; load it again with --replace'
FROM runs
LEFT JOIN totals
  ON totals.run_id = runs.run_id AND totals.trace_id IS NULL AND totals.step_id IS NULL
WHERE totals.run_id IS NULL
UNION ALL
SELECT
  runs.run_id, 'the run id is not the beginning of its content hash ' || runs.content_sha256
FROM runs
WHERE NOT starts_with(coalesce(runs.content_sha256, ''), runs.run_id)
ORDER BY ALL
