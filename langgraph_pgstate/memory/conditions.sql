-- condition: meets_filter
-- Whether the value of an item meets all conditions of a filter. A missing field of an object counts as null.
SELECT FROM /*schema*/memories m WHERE
(cardinality(:paths::text[]) = 0 OR NOT EXISTS (
    SELECT 1 FROM unnest(:paths::text[], :operators::text[], :operands::text[]) AS f (path, operator, operand)
    WHERE NOT coalesce(CASE f.operator
        WHEN '$eq' THEN coalesce(jsonb_extract_path(m.value, VARIADIC f.path::text[]), 'null') = f.operand::jsonb
        WHEN '$ne' THEN coalesce(jsonb_extract_path(m.value, VARIADIC f.path::text[]), 'null') <> f.operand::jsonb
        WHEN 'is object' THEN jsonb_typeof(jsonb_extract_path(m.value, VARIADIC f.path::text[])) = 'object'
        ELSE jsonb_typeof(jsonb_extract_path(m.value, VARIADIC f.path::text[])) = jsonb_typeof(f.operand::jsonb)
            AND CASE f.operator
                WHEN '$gt' THEN jsonb_extract_path(m.value, VARIADIC f.path::text[]) > f.operand::jsonb
                WHEN '$gte' THEN jsonb_extract_path(m.value, VARIADIC f.path::text[]) >= f.operand::jsonb
                WHEN '$lt' THEN jsonb_extract_path(m.value, VARIADIC f.path::text[]) < f.operand::jsonb
                ELSE jsonb_extract_path(m.value, VARIADIC f.path::text[]) <= f.operand::jsonb
            END
    END, false)
));

-- condition: is_wanted
-- Whether an item has not expired and, if kinds are given, has one of these kinds. A star stands for any kind.
SELECT FROM /*schema*/memories m WHERE
(m.expires_at IS NULL OR m.expires_at > now())
AND (:kinds::text[] IS NULL OR m.kind = ANY(:kinds) OR '*' = ANY(:kinds) AND m.kind IS NOT NULL);
