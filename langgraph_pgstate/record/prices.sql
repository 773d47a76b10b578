-- name: set_price
-- Set the price of a million tokens of a model from a given time on.
INSERT INTO /*schema*/prices (model, provider, valid_from, input, output, cache_read, reasoning)
VALUES (
    :model::text, :provider::text, coalesce(:valid_from::timestamptz, '-infinity'), :input::text::numeric,
    :output::text::numeric, :cache_read::text::numeric, :reasoning::text::numeric
)
ON CONFLICT (model, provider, valid_from) DO UPDATE SET
    input = excluded.input, output = excluded.output, cache_read = excluded.cache_read, reasoning = excluded.reasoning;

-- name: list_prices
-- Return all prices, newest first for each model.
SELECT model, provider, nullif(valid_from, '-infinity'), input, output, cache_read, reasoning
FROM /*schema*/prices
WHERE :model::text IS NULL OR model = :model
ORDER BY model, provider, valid_from DESC;

-- name: delete_price
-- Delete a price.
DELETE FROM /*schema*/prices
WHERE model = :model::text AND provider = :provider::text
    AND valid_from = coalesce(:valid_from::timestamptz, '-infinity');
