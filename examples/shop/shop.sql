-- The shop's pipeline: topics and sources, views, sinks and alerts.
-- `headwater run shop.sql` runs it; a second time an identical CREATE does nothing.

-- Topics and sources ---------------------------------------------------------------------------------------------------

-- The shop's own database: every table a topic, every transaction one append.
CREATE SOURCE shop FROM POSTGRES WITH (
  url = env('SHOP_URL'),
  tables = 'public.customers, public.products, public.stock, public.orders, public.payments'
);

-- Clicks of visitors, posted by devices whose clocks are wrong and whose networks fail. The log corrects the
-- clocks (`corrected_at`); the watermark waits ten seconds for those that are behind.
CREATE TOPIC clicks (
  device_id STRING NOT NULL, customer_id BIGINT, product_id BIGINT, page STRING, channel STRING,
  occurred_at TIMESTAMP, sent_at TIMESTAMP,
  WATERMARK FOR corrected_at AS corrected_at - INTERVAL '10 seconds'
) WITH (clock = 'device_id', partitions = 2, idle_after = '10 seconds');

-- Views ----------------------------------------------------------------------------------------------------------------

-- Placed orders, with names. An order that is cancelled or refunded is removed.
CREATE MATERIALIZED VIEW order_book AS
  SELECT o.id, o.ordered_at, c.id AS customer_id, c.country, p.id AS product_id, p.name AS product, o.quantity, o.amount
  FROM orders o JOIN customers c ON o.customer_id = c.id JOIN products p ON o.product_id = p.id
  WHERE o.status = 'placed';

-- Revenue by country. When a customer moves, all their orders count for the new country.
CREATE MATERIALIZED VIEW revenue AS
  SELECT country, sum(amount) AS revenue, count(*) AS orders FROM order_book GROUP BY country;

CREATE MATERIALIZED VIEW top_products AS
  SELECT product_id, product, sum(quantity) AS sold, sum(amount) AS revenue FROM order_book
  GROUP BY product_id, product ORDER BY revenue DESC LIMIT 5;

-- Clicks per minute, twice. Here late clicks correct the minute in which they happened ...
CREATE MATERIALIZED VIEW clicks_per_minute AS
  SELECT window(corrected_at, '1 minute').start AS minute, count(*) AS clicks, count(DISTINCT customer_id) AS visitors
  FROM clicks GROUP BY window(corrected_at, '1 minute');

-- ... and here a minute is shown once, when it is final: late clicks are in
-- `clicks_final.late`.
CREATE MATERIALIZED VIEW clicks_final WITH (late = 'divert') AS
  SELECT window(corrected_at, '1 minute').start AS minute, page, count(*) AS clicks
  FROM clicks GROUP BY window(corrected_at, '1 minute'), page EMIT ON WINDOW CLOSE;

-- Visits: clicks of a customer less than half an hour apart, and whether they led to an order.
CREATE MATERIALIZED VIEW visits AS
  SELECT customer_id, channel, session_window(corrected_at, '30 minutes').start AS began, count(*) AS clicks,
         max(CASE WHEN page = 'thanks' THEN 1 ELSE 0 END) AS bought
  FROM clicks GROUP BY customer_id, channel, session_window(corrected_at, '30 minutes');

CREATE MATERIALIZED VIEW conversion AS
  SELECT channel, count(*) AS visits, sum(bought) AS bought, round(100.0 * sum(bought) / count(*), 1) AS percent
  FROM visits GROUP BY channel;

-- Payments joined with their orders within an hour, unpaid orders, and payments without an order.
CREATE MATERIALIZED VIEW paid_orders AS
  SELECT o.id AS order_id, p.id AS payment_id, o.amount, p.paid_at
  FROM orders o JOIN payments p
    ON p.order_id = o.id AND p.paid_at BETWEEN o.ordered_at AND o.ordered_at + INTERVAL '1 hour'
  WHERE p.kind = 'payment';

CREATE MATERIALIZED VIEW unpaid_orders AS
  SELECT o.id AS order_id, o.customer_id, o.amount, o.ordered_at
  FROM orders o LEFT ANTI JOIN payments p
    ON p.order_id = o.id AND p.paid_at BETWEEN o.ordered_at AND o.ordered_at + INTERVAL '1 hour'
  WHERE o.status = 'placed';

CREATE MATERIALIZED VIEW stray_payments AS
  SELECT p.id AS payment_id, p.order_id, p.amount, p.paid_at
  FROM payments p LEFT ANTI JOIN orders o
    ON p.order_id = o.id AND p.paid_at BETWEEN o.ordered_at AND o.ordered_at + INTERVAL '1 hour'
  WHERE p.kind = 'payment';

-- Products to reorder.
CREATE MATERIALIZED VIEW stock_alerts AS
  SELECT p.id AS product_id, p.name AS product, s.quantity, s.reorder_at
  FROM stock s JOIN products p ON s.product_id = p.id WHERE s.quantity < s.reorder_at;

-- The catalogue for search.
CREATE MATERIALIZED VIEW catalogue AS
  SELECT p.id, p.name, p.description, p.category, p.price, s.quantity > 0 AS available
  FROM products p JOIN stock s ON s.product_id = p.id;

-- Sinks ----------------------------------------------------------------------------------------------------------------

CREATE SINK revenue_cache FROM revenue INTO REDIS WITH (url = env('CACHE_URL'), key = 'country');
CREATE SINK revenue_report FROM revenue INTO POSTGRES WITH (url = env('REPORTS_URL'), table = 'revenue_report');
CREATE SINK product_search FROM catalogue INTO SEARCH WITH (text = 'name, description', language = 'english');
CREATE SINK clicks_lake FROM clicks_final INTO LAKE WITH (table = 'shop.clicks_final', mode = 'append');

-- Alerts ---------------------------------------------------------------------------------------------------------------

-- Sent once when a product runs low, and once when it is restocked; also if the engine was killed in between.
CREATE ALERT low_stock ON stock_alerts WHEN quantity < reorder_at NOTIFY TOPIC WITH (topic = 'notices');
