-- Which matrix products and attentions does each of the steps $step_ids of run $run_id ask for, on what
-- shapes? Also the operators by which experts are known.
-- Grain: one row per step, operator and shapes. Dims and types are NULL where shapes were not recorded.
SELECT
  ops.step_id, names.name AS op, shapes.input_dims, shapes.input_types, count(*) AS times
FROM ops
JOIN names ON names.run_id = $run_id AND names.name_id = ops.name_id
LEFT JOIN shapes ON shapes.run_id = $run_id AND shapes.shape_id = ops.shape_id
WHERE ops.run_id = $run_id AND list_contains($step_ids, ops.step_id) AND NOT ops.bad_time
  AND (names.name IN ('aten::mm', 'aten::addmm', 'aten::bmm', 'aten::baddbmm', 'aten::index_add_',
                      'aten::_grouped_mm', 'aten::one_hot')
       OR names.name LIKE 'aten::\_scaled\_dot\_product\_%attention' ESCAPE '\')
GROUP BY ALL
ORDER BY ops.step_id, op, shapes.input_dims, shapes.input_types
