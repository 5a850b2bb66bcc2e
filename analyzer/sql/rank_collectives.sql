-- How long did each kind of collective of run $run_id take to transfer, and how far apart did its ranks begin?
-- Grain: one row per process group (or stream), collective and size, of pairs in steps, most time first.
-- transfer: the shortest of the ranks' (all end together, so they differ by the clocks' error only).
-- bus_bytes_per_s: size / transfer, times 2 (n-1)/n for an all-reduce and (n-1)/n for others of n ranks,
-- whose size is that of the larger buffer (NCCL tests, PERFORMANCE.md); NULL where sizes are not recorded.
WITH whole AS (
  SELECT
    collective_id, any_value(coalesce(process_group, 'stream ' || stream)) AS process_group,
    any_value(collective) AS collective, any_value(bytes) AS bytes, count(*) AS ranks,
    min(transfer_ns) AS transfer_ns, max(aligned_start_ns) - min(aligned_start_ns) AS skew_ns
  FROM collectives
  WHERE run_id = $run_id AND is_pair AND wait_ns IS NOT NULL AND step_id IS NOT NULL
  GROUP BY collective_id
)
SELECT
  process_group, collective, bytes, ranks, count(*) AS collectives,
  quantile_disc(transfer_ns, 0.5) AS transfer_p50_ns, sum(transfer_ns)::BIGINT AS transfer_ns,
  quantile_disc(skew_ns, 0.5) AS skew_p50_ns, quantile_disc(skew_ns, 0.95) AS skew_p95_ns,
  CASE
    WHEN bytes IS NULL THEN NULL
    WHEN regexp_matches(lower(collective), 'all_?reduce') THEN 2e9 * (ranks - 1) / ranks
    WHEN regexp_matches(lower(collective), 'gather|reduce_?scatter|all_?to_?all') THEN 1e9 * (ranks - 1) / ranks
  END * bytes / nullif(quantile_disc(transfer_ns, 0.5), 0) AS bus_bytes_per_s
FROM whole
GROUP BY process_group, collective, bytes, ranks
ORDER BY sum(transfer_ns) DESC, process_group, collective, bytes
