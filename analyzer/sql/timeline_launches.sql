-- Which launches started kernel $kernel_id of run $run_id, and what did each cost?
-- Grain: one row per launch whose first kernel it is, in order of time.
SELECT
  launches.trace_id, steps.name AS step, calls.start_ns AS call_start_ns, call_name.name AS call,
  launches.kernels, launches.is_graph, launches.t_py_ns, launches.t_dispatch_ns, launches.t_launch_ns,
  launches.is_clean, launches.t_exec_ns, launches.dft_ns, launches.dct_ns, launches.dkt_ns,
  launches.match_tier, launches.call_id
FROM launches
JOIN calls ON calls.run_id = $run_id AND calls.call_id = launches.call_id
LEFT JOIN names AS call_name ON call_name.run_id = $run_id AND call_name.name_id = calls.name_id
LEFT JOIN steps ON steps.run_id = $run_id AND steps.step_id = launches.step_id
WHERE launches.run_id = $run_id AND launches.kernel_id = $kernel_id
ORDER BY launches.trace_id, calls.start_ns, launches.call_id
LIMIT $row_limit
