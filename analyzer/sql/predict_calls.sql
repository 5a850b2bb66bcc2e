-- What did the main thread of step $step_id of run $run_id ask of CUDA or HIP, in order?
-- Grain: one row per call with sound times that starts in the step. Times count from the step's start.
SELECT
  calls.call_id, calls.account, calls.start_ns - steps.start_ns AS start_ns, calls.dur_ns,
  steps.end_ns - steps.start_ns AS step_ns
FROM calls
JOIN steps ON steps.run_id = $run_id AND steps.step_id = calls.step_id
WHERE calls.run_id = $run_id AND calls.step_id = $step_id AND calls.thread_id = steps.thread_id
  AND NOT calls.bad_time AND NOT calls.in_capture
ORDER BY calls.start_ns, calls.dur_ns DESC, calls.call_id
