-- What ran between $start_ns and $end_ns of trace $trace_id of run $run_id, drawn at $pixel_ns a pixel?
-- Grain: one row per event of a pixel or more; the shorter ones of a lane and pixel column share a row,
-- named like the longest. So the rows are bounded by lanes x columns, whatever the trace holds.
-- lane_kind: region | op (outermost) | call (outermost by drawing order) | stream; lane: thread id or device/stream.
-- busy_ns: sum of durations; id: op_id, call_id or device_event_id of the longest.
WITH events AS (
  SELECT
    CASE WHEN is_region THEN 'region' ELSE 'op' END AS lane_kind, thread_id::VARCHAR AS lane,
    op_id AS id, name_id, NULL AS detail, start_ns, dur_ns
  FROM ops
  WHERE run_id = $run_id AND trace_id = $trace_id AND NOT bad_time
    AND start_ns < $end_ns AND start_ns + dur_ns > $start_ns
    AND CASE WHEN is_region THEN parent_op_id IS NULL ELSE outermost_op_id = op_id END
  UNION ALL
  SELECT 'call', thread_id::VARCHAR, call_id, name_id, account, start_ns, dur_ns
  FROM calls
  WHERE run_id = $run_id AND trace_id = $trace_id AND NOT bad_time
    AND start_ns < $end_ns AND start_ns + dur_ns > $start_ns
  UNION ALL
  SELECT 'stream', device || '/' || stream, device_event_id, name_id, kind, start_ns, dur_ns
  FROM device_events
  WHERE run_id = $run_id AND trace_id = $trace_id AND NOT bad_time
    AND start_ns < $end_ns AND start_ns + dur_ns > $start_ns
),
drawn AS (
  SELECT
    lane_kind, lane, min(start_ns) AS start_ns, max(start_ns + dur_ns) AS end_ns,
    count(*) AS events, sum(dur_ns)::BIGINT AS busy_ns,
    arg_max(id, dur_ns) AS id, arg_max(name_id, dur_ns) AS name_id, arg_max(detail, dur_ns) AS detail,
    max(dur_ns) AS longest_ns
  FROM events
  GROUP BY
    lane_kind, lane,
    CASE WHEN dur_ns < $pixel_ns THEN start_ns // $pixel_ns END,
    CASE WHEN dur_ns >= $pixel_ns THEN id END
)
SELECT drawn.* EXCLUDE (name_id), names.name
FROM drawn
LEFT JOIN names ON names.run_id = $run_id AND names.name_id = drawn.name_id
ORDER BY lane_kind, lane, start_ns
