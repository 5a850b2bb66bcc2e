-- On which match tier do the launches of run $run_id and their cost stand?
-- Grain: one row per tier; no rows without kernel replay. cost_ns = dFT + dCT + dKT as far as known.
SELECT
  launches.match_tier AS tier,
  count(*) AS launches,
  count(*) FILTER (matches.same_configuration) AS same_configuration,
  sum(coalesce(launches.dft_ns, 0) + coalesce(launches.dct_ns, 0) + coalesce(launches.dkt_ns, 0))::BIGINT
    AS cost_ns,
  coalesce(sum(coalesce(launches.dft_ns, 0) + coalesce(launches.dct_ns, 0) + coalesce(launches.dkt_ns, 0))
    FILTER (matches.same_configuration), 0)::BIGINT AS same_configuration_cost_ns
FROM launches
LEFT JOIN matches ON matches.run_id = launches.run_id AND matches.kernel_id = launches.kernel_id
WHERE launches.run_id = $run_id AND launches.match_tier IS NOT NULL
GROUP BY launches.match_tier
ORDER BY tier
